from tests.store.conftest import connect, connection, parameters

__all__ = ["connect", "connection", "parameters"]
