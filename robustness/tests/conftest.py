from tests.conftest import make_run, quadratic_run  # noqa: F401
