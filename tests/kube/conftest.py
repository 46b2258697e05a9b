from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kube.fake_api import FakeApi, served

from pliant.kube.connection import Cluster


@pytest.fixture
def fake() -> FakeApi:
    return FakeApi()


@pytest.fixture
def cluster(fake: FakeApi) -> Iterator[Cluster]:
    with served(fake) as found:
        yield found
