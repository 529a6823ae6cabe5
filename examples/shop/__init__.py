"""A small shop on Flask and Flask-SQLAlchemy, and how leasestore was added to it."""
