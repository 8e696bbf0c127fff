"""What clients keep: the same on disk as in memory, whatever the limit, and what a checkpoint named after a crash."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import accord
from accord.seeds import number
from accord.store import Store
from small import federation, identical, net, train

KEYS = ("first", "second")


def state(value: int, size: int = 4) -> dict[str, dict[str, Tensor]]:
    return {"first": {"c": torch.full((size,), float(value))}, "second": {"w/old": torch.arange(size) + value, "n": torch.tensor(value)}}


def files(folder: Path) -> set[str]:
    return {f.name for f in folder.glob("*/*.safetensors")}


def test_nothing_is_kept_before_the_first_round(tmp_path: Path) -> None:
    store = Store(KEYS, tmp_path)
    assert store.get(3) == {}
    store.put(3, {})
    assert store.versions == {}
    assert files(tmp_path) == set()


@pytest.mark.parametrize("limit", [0, 60, 10**6])
def test_what_was_put_is_what_comes_back(limit: int, tmp_path: Path) -> None:
    store = Store(KEYS, tmp_path, limit=limit)
    for client in range(8):
        store.put(client, state(client))
    for client in (5, 0, 7, 7, 3):
        assert identical(dict(store.get(client)), state(client))
        assert store.bytes <= limit
    store.put(3, state(33))
    assert identical(dict(store.get(3)), state(33))
    assert store.versions == {k: 2 if k == 3 else 1 for k in range(8)}


def test_the_least_recently_used_leave_first(tmp_path: Path) -> None:
    store = Store(KEYS, tmp_path, limit=3 * 16)
    for client in (0, 1, 2):
        store.put(client, {"first": {"c": torch.zeros(4)}})
    store.get(0)
    store.put(3, {"first": {"c": torch.zeros(4)}})
    assert list(store.held) == [2, 0, 3]
    assert files(tmp_path) == {"1-1.safetensors"}


def test_states_that_share_memory_are_written_whole(tmp_path: Path) -> None:
    """A part may keep the same tensor under two names, or two pieces of one."""
    store, whole = Store(KEYS, tmp_path, limit=0), torch.arange(6.0)
    store.put(0, {"first": {"a": whole, "b": whole}, "second": {"c": whole[:3], "d": whole[3:], "e": whole.reshape(2, 3).t()}})
    back = store.get(0)
    assert back["first"]["a"].equal(whole)
    assert back["first"]["b"].equal(whole)
    assert back["second"]["d"].tolist() == [3, 4, 5]
    assert back["second"]["e"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_keys_are_filed_by_their_place(tmp_path: Path) -> None:
    algorithm = accord.scaffold() + accord.buffers("local")
    kept = {accord.control(): {"c": torch.ones(3)}, algorithm.buffers: {"b": torch.zeros(2)}}
    store = Store(algorithm.keys, tmp_path, limit=0)
    store.put(1, kept)
    assert identical(dict(store.get(1)), kept)


def test_ten_thousand_clients_take_no_more_memory_than_the_limit(tmp_path: Path) -> None:
    limit, peak = 50_000, 0
    store = Store(KEYS, tmp_path, limit=limit)
    for client in range(10_000):
        store.put(client, {"first": {"c": torch.full((25,), float(client))}})
        peak = max(peak, store.bytes)
    assert peak <= limit
    assert store.bytes == sum(t.nbytes for kept in store.held.values() for s in kept.values() for t in s.values())
    assert len(store.held) == limit // 100
    for client in range(0, 10_000, 997):
        assert store.get(client)["first"]["c"].eq(client).all()
        assert store.bytes <= limit
    assert len(files(tmp_path)) >= 10_000 - limit // 100
    assert max(len(list(folder.iterdir())) for folder in tmp_path.iterdir()) <= 1000


def test_a_temporary_folder_goes_with_the_store() -> None:
    store = Store(KEYS, limit=0)
    store.put(0, state(1))
    folder = store.folder
    assert files(folder) == {"0-1.safetensors"}
    del store
    assert not folder.exists()


# --- checkpoints -----------------------------------------------------------------------------------------------------------------------


def test_restore_goes_back_to_the_checkpoint_and_removes_what_came_later(tmp_path: Path) -> None:
    store = Store(KEYS, tmp_path, limit=0)
    for client in range(4):
        store.put(client, state(client))
    versions = store.flush()
    store.commit(versions)
    assert versions == dict.fromkeys(range(4), 1)
    store.put(1, state(10))
    store.put(1, state(11))
    store.put(5, state(15))
    assert {"1-1.safetensors", "1-3.safetensors", "5-1.safetensors"} <= files(tmp_path)
    assert "1-2.safetensors" not in files(tmp_path)

    fresh = Store(KEYS, tmp_path)
    fresh.restore(versions)
    assert files(tmp_path) == {f"{k}-1.safetensors" for k in range(4)}
    assert identical(dict(fresh.get(1)), state(1))
    assert fresh.get(5) == {}
    fresh.put(1, state(12))
    fresh.flush()
    assert identical(dict(fresh.get(1)), state(12))


@pytest.mark.parametrize("limit", [0, 10**6])
def test_a_used_store_restores_too(limit: int, tmp_path: Path) -> None:
    """What it holds in memory is of the time after the checkpoint and must not come back."""
    store = Store(KEYS, tmp_path, limit=limit)
    store.put(1, state(1))
    versions = store.flush()
    store.commit(versions)
    store.put(1, state(2))
    store.put(2, state(3))
    store.restore(versions)
    assert identical(dict(store.get(1)), state(1))
    assert store.get(2) == {}
    assert store.flush() == versions


def test_the_files_of_the_last_checkpoint_stay_until_the_next_is_named(tmp_path: Path) -> None:
    store = Store(KEYS, tmp_path, limit=0)
    store.put(0, state(1))
    store.commit(store.flush())
    store.put(0, state(2))
    newer = store.flush()
    assert files(tmp_path) == {"0-1.safetensors", "0-2.safetensors"}  # a crash here goes back to the first
    store.commit(newer)
    assert files(tmp_path) == {"0-2.safetensors"}


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5)),
        st.tuples(st.just("get"), st.integers(0, 5)),
        st.tuples(st.just("forget"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["flush", "commit", "crash"]), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=120)
@given(OPERATIONS, st.sampled_from([0, 100, 250, 10**6]))
def test_any_sequence_of_writes_checkpoints_and_crashes(operations: list[tuple[str, int]], limit: int) -> None:
    """A plain dictionary, and a copy of it at each checkpoint, say what must come back."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        store, now, saved = Store(KEYS, folder, limit), {}, {}
        versions: dict[int, int] = {}
        for at, (what, client) in enumerate(operations):
            if what == "put":
                now[client] = state(at)
                store.put(client, state(at))
            elif what == "forget":
                if client in now:
                    now[client] = {}
                store.put(client, {})
            elif what == "get":
                assert identical(dict(store.get(client)), now.get(client, {}))
            elif what == "flush":
                store.flush()
            elif what == "commit":
                versions = store.flush()
                store.commit(versions)
                saved = dict(now)
            else:
                store, now = Store(KEYS, folder, limit), dict(saved)
                store.restore(versions)
            assert store.bytes <= limit
        for client in range(6):
            assert identical(dict(store.get(client)), now.get(client, {}))
        store.commit(store.flush())
        assert len(files(folder)) == len(store.versions)


def test_a_run_is_the_same_with_its_states_on_disk() -> None:
    for text in ("scaffold", "scaffold + buffers(local)"):
        algorithm, data = accord.read(text) + accord.uniform(4) + accord.sgd(lr=0.05, batch=4, epochs=1), federation()
        wanted = train(algorithm, net(norm=True), data, 4)
        found = train(algorithm, net(norm=True), data, 4, store=Store(algorithm.keys, limit=0))
        assert found.w.equal(wanted.w)
        assert found.b.equal(wanted.b)
        assert identical(found.state, wanted.state)


# --- streams of random numbers ---------------------------------------------------------------------------------------------------------


def test_streams_depend_on_every_key_and_on_nothing_else() -> None:
    seen = {number(s, purpose, r, k) for s in range(4) for purpose in ("client", "module") for r in range(5) for k in range(6)}
    assert len(seen) == 4 * 2 * 5 * 6
    assert all(0 <= n < 2**63 for n in seen)
    assert number(1, 23) != number(12, 3)
    assert number(0, "client", 1, 2) == number(0, "client", 1, 2)
