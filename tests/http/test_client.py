"""What a claimant is told of each way in which a pool can answer its report."""

from __future__ import annotations

import httpx
import pytest

from pliant.core.errors import ConfigError
from pliant.http.client import UnheardError, offer_in
from pliant.wire.offers import Offer


def test_an_offer_is_an_offer() -> None:
    offer = Offer(pool="a life", revision=3, devices=(1,))

    assert offer_in(httpx.Response(200, content=offer.model_dump_json())) == offer


def test_what_a_pool_refuses_is_refused_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match=r"^there is no team x$"):
        offer_in(httpx.Response(409, json={"detail": "there is no team x"}))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (httpx.Response(503, json={"detail": "it is being stopped"}), "it is being stopped"),
        (httpx.Response(401, json={"detail": "the token is wrong"}), "the token is wrong"),
        (
            httpx.Response(502, text="<html>"),
            "the pool refused the request with HTTP status 502",
        ),
        (
            httpx.Response(200, text="<html>"),
            "the pool answered with what is no offer: 1 validation error for Offer",
        ),
    ],
)
def test_what_is_not_possible_now_is_said_in_the_pools_words(
    answer: httpx.Response, sentence: str
) -> None:
    with pytest.raises(UnheardError) as caught:
        offer_in(answer)

    assert str(caught.value) == sentence
