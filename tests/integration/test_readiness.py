"""/readyz of a server whose brokers are killed and come back."""

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from ops.local.services.process import free_ports, wait_until
from tests.deployment import Deployed, write_recipe
from tests.services import Service

SOON = 60.0


class WithPage(Deployed):
    def _server(self) -> list[str]:
        self.port = free_ports(["web"])["web"]
        return [*super()._server(), "--web", str(self.port)]

    def ready(self) -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=30) as reply:
                return int(reply.status), reply.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)


def test_readyz_names_the_broker_that_is_away_until_it_is_back(
    tmp_path: Path, own_rabbitmq: Service, own_redis: Service
) -> None:
    recipe = write_recipe(tmp_path, rounds=100)
    run = WithPage(tmp_path / "run", recipe, own_rabbitmq.url, own_redis.url, workers=0)
    with run:
        assert wait_until(lambda: run.ready() == (200, "ready\n"), SOON), run.tail()
        for service, name in ((own_redis, "Redis"), (own_rabbitmq, "RabbitMQ")):
            service.kill()
            assert wait_until(lambda: run.ready()[0] == 503, SOON), f"{run.ready()} without {name}"
            status, why = run.ready()
            assert (status, name in why) == (503, True), why
            service.start()
            assert wait_until(lambda: run.ready() == (200, "ready\n"), SOON), run.ready()
