"""What comes in and goes out over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, HttpUrl

Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""As leasestore takes ids and notes: refused here, a bad one is a 422 that names the field."""


class NewSubscription(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=100)]
    url: HttpUrl


class NewEvent(BaseModel):
    kind: Annotated[str, Field(min_length=1, max_length=100)]
    body: dict[str, Any]


class NewRedrive(BaseModel):
    note: Identifier


class SubscriptionState(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    name: str
    url: str


class DeliveryState(BaseModel):
    """A job as the outside world may see it, right from its row."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    subscription_id: int
    status: str
    reason: str | None
    attempts: int
    token: int
    result: str | None


class EventState(BaseModel):
    id: str
    kind: str
    deliveries: list[DeliveryState]


class Health(BaseModel):
    status: str
