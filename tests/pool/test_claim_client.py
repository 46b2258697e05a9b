"""Offers reach a claimant that takes them, and are what its reports are answered with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from tests.scene import scene

from pliant.core.errors import ConfigError
from pliant.pool import claim_client
from pliant.pool.claim_client import Pusher, UnheardError, offer_in
from pliant.wire.offers import Offer

Scene = Callable[[Pusher, list[httpx.Request]], Awaitable[None]]


@pytest.fixture
def play() -> Callable[..., None]:
    return played


def played(scene: Scene, *answers: int) -> None:
    """Play with a claimant that gives these answers, and then always the last."""
    codes = list(answers)
    asked: list[httpx.Request] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        code = codes.pop(0) if len(codes) > 1 else codes[0]
        if code == 0:
            raise httpx.ConnectError("connection refused")
        return httpx.Response(code)

    async def playing() -> None:
        pusher = Pusher(httpx.AsyncClient(transport=httpx.MockTransport(answer)))
        try:
            await scene(pusher, asked)
        finally:
            await pusher.close()

    asyncio.run(playing())


def offer(revision: int) -> Offer:
    return Offer(pool="life", revision=revision)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_client, "AGAIN_S", (0.01, 0.01))


@scene(200)
async def test_an_offer_is_put_where_the_claimant_takes_it(
    pusher: Pusher, asked: list[httpx.Request]
) -> None:
    pusher.push("gpt", offer(3), url="http://job", token="secret")
    await pusher.idle()

    [request] = asked
    assert (request.method, str(request.url)) == ("PUT", "http://job/v1/offer")
    assert request.headers["Authorization"] == "Bearer secret"
    assert Offer.model_validate_json(request.content) == offer(3)


@scene(0, 500, 503)
async def test_a_claimant_that_does_not_answer_is_tried_again_and_then_left_alone(
    pusher: Pusher, asked: list[httpx.Request]
) -> None:
    pusher.push("gpt", offer(3), url="http://job", token="secret")
    await pusher.idle()

    assert len(asked) == 3


@scene(200)
async def test_of_two_offers_to_one_claimant_only_the_newer_is_told(
    pusher: Pusher, asked: list[httpx.Request]
) -> None:
    pusher.push("gpt", offer(3), url="http://job", token="secret")
    pusher.push("gpt", offer(4), url="http://job", token="secret")
    pusher.push("cnn", offer(5), url="http://other", token="secret")
    await pusher.idle()

    told = [Offer.model_validate_json(request.content).revision for request in asked]
    assert sorted(told) == [4, 5]


@scene(200)
async def test_one_that_is_gone_is_told_nothing(pusher: Pusher, asked: list[httpx.Request]) -> None:
    pusher.push("gpt", offer(3), url="http://job", token="secret")
    pusher.drop("gpt")
    pusher.drop("gpt")
    await pusher.idle()

    assert asked == []


@scene(200)
async def test_an_address_that_is_none_is_no_error(
    pusher: Pusher, asked: list[httpx.Request]
) -> None:
    pusher.push("gpt", offer(3), url="job", token="secret")
    await pusher.idle()


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
