"""The application: `flask --app examples.shop.app run`."""

from __future__ import annotations

import logging
from pathlib import Path

from flask import Flask

from examples.shop import deliveries
from examples.shop.models import db
from examples.shop.views import shop


def create_app() -> Flask:
    """Each setting can be given in the environment: `SHOP_LEASE_MS=5000`."""
    app = Flask(__name__)
    app.config.from_mapping(
        SQLALCHEMY_DATABASE_URI=f"sqlite:///{Path('shop.db').absolute()}",
        CARRIER_URL="http://127.0.0.1:8900/parcels",
        LEASE_MS=30_000,
    )
    app.config.from_prefixed_env("SHOP")
    app.logger.setLevel(logging.INFO)
    db.init_app(app)
    deliveries.init_app(app)
    app.register_blueprint(shop)
    return app
