"""The shop's tables: three from the start, and the two of its delivery queue."""
# mypy: disable-error-code="name-defined, misc"
# Flask-SQLAlchemy makes db.Model at run time, where mypy cannot see it.

from __future__ import annotations

from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import BigInteger, CheckConstraint, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from leasestore import JobMixin, RedriveMixin


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)


class Customer(db.Model):
    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    address: Mapped[str]


class Product(db.Model):
    __tablename__ = "products"
    __table_args__ = (CheckConstraint("stock >= 0", name="ck_products_stock"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str] = mapped_column(unique=True)
    stock: Mapped[int]


class Order(db.Model):
    __tablename__ = "orders"
    __table_args__ = (
        CheckConstraint("quantity BETWEEN 1 AND 1000", name="ck_orders_quantity"),
        CheckConstraint("status IN ('placed', 'delivered')", name="ck_orders_status"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id))
    product_id: Mapped[int] = mapped_column(ForeignKey(Product.id))
    quantity: Mapped[int]
    status: Mapped[str] = mapped_column(default="placed")
    delivered_at_ms: Mapped[int | None] = mapped_column(BigInteger)

    customer: Mapped[Customer] = relationship()
    product: Mapped[Product] = relationship()
    # To look at; its rows are written through the repository only.
    delivery: Mapped[Delivery | None] = relationship(viewonly=True)


class Delivery(JobMixin, db.Model):
    """The job of bringing one order to its customer."""

    __tablename__ = "deliveries"

    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), unique=True)
    carrier_reference: Mapped[str | None]


class DeliveryRedrive(RedriveMixin, db.Model):
    """Who gave a dead delivery another chance, and when."""

    __tablename__ = "delivery_redrives"
