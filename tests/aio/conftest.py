from __future__ import annotations

# The application's database, as the tests of the synchronous repository have it.
from tests.embedding.conftest import application_url as application_url
from tests.embedding.conftest import kept_url as kept_url
