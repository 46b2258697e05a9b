"""What is known never goes backward, and is found by job and owner."""

from __future__ import annotations

from typing import Any

from pliant.kube.client import Object
from pliant.kube.store import Store


def pod(name: str, version: int, uid: str | None = None, job: str = "j", **more: Any) -> Object:
    owner = {"uid": f"uid-of-{job}", "controller": True}
    meta = {
        "name": name,
        "namespace": "a",
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "labels": {"pliant.dev/job": job},
        "ownerReferences": [owner],
        "managedFields": ["much"],
    }
    return {"metadata": meta, **more}


def names(bodies: list[Object]) -> list[str]:
    return [body["metadata"]["name"] for body in bodies]


def test_a_watch_that_is_behind_does_not_undo_what_was_written() -> None:
    heard: list[tuple[object, object]] = []
    store = Store()
    store.listen(lambda old, new: heard.append((old and old.get("x"), new and new.get("x"))))
    store.changed(pod("p", 10, x=1))
    store.changed(pod("p", 12, x=2))  # the answer to our own write
    store.changed(pod("p", 11, x=1))
    store.changed(pod("p", 13, x=2))  # nothing that is read has changed
    assert store.get("p", "a") == {**pod("p", 13, x=2), "metadata": store.get("p", "a")["metadata"]}  # type: ignore[index]
    assert heard == [(None, 1), (1, 2)]


def test_what_was_deleted_here_is_not_brought_back_but_its_successor_is_seen() -> None:
    store = Store()
    store.changed(pod("p", 10, uid="first"))
    store.removed(pod("p", 10, uid="first"))
    store.changed(pod("p", 11, uid="first"))
    assert store.get("p", "a") is None
    store.changed(pod("p", 14, uid="second"))
    store.removed(pod("p", 12, uid="first"))  # the watch tells at last
    store.changed(pod("p", 12, uid="first"))  # and the answer to the deletion was slower still
    assert store.get("p", "a") is not None


def test_a_list_takes_away_what_is_gone_and_keeps_what_is_newer() -> None:
    store = Store()
    for name in ("old", "kept"):
        store.changed(pod(name, 10))
    store.changed(
        pod("elsewhere", 10) | {"metadata": {**pod("e", 10)["metadata"], "namespace": "b"}}
    )
    store.changed(pod("new", 22))  # created by us after the list was made
    store.listed([pod("kept", 10)], version="20", namespace="a")
    assert sorted(names(list(store))) == ["e", "kept", "new"]
    assert names(store.by("job", ("a", "j"))) == ["kept", "new"]
    assert names(store.by("owner", "uid-of-j")) == ["kept", "new", "e"]
    store.listed([], version="30", namespace=None)
    assert list(store) == []
    assert store.by("job", ("a", "j")) == []
