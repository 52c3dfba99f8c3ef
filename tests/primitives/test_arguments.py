"""What the primitives take as arrays: dtypes, layouts and memory, and what they refuse."""

from __future__ import annotations

import ast
import inspect
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echoic import _native, errors, primitives

R = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
V = np.array([0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
D = np.array([0, 0, 1, 0, 0, 0], dtype=bool)


def gae(rewards: Any = R, values: Any = V, dones: Any = D, last: Any = 7.0, **options: Any) -> Any:
    return primitives.compute_gae(rewards, values, dones, last, 0.9, 0.8, **options)


EXPECTED, EXPECTED_RETURNS = gae()


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int8, np.int64, np.float32, np.float64])
def test_flags_may_have_any_dtype(dtype: Any) -> None:
    np.testing.assert_array_equal(gae(dones=D.astype(dtype))[0], EXPECTED)
    np.testing.assert_array_equal(gae(dones=D.tolist())[0], EXPECTED)


@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.float16, np.float32),
        (np.int64, np.float64),
        (bool, np.float64),
        (">f8", np.float64),
    ],
)
def test_the_rewards_say_in_which_dtype(dtype: Any, computed: Any) -> None:
    rewards = np.ones(3, dtype=dtype)
    for result in gae(rewards, np.zeros(3), np.zeros(3)):
        assert result.dtype == computed
    np.testing.assert_allclose(
        gae(rewards, np.zeros(3), np.zeros(3), 0.0)[0], [2.2384, 1.72, 1.0], rtol=1e-6
    )


def test_values_of_another_dtype_are_converted() -> None:
    np.testing.assert_array_equal(gae(values=V.astype(np.float32))[0], EXPECTED)
    np.testing.assert_array_equal(gae(last=np.float32(7.0))[0], EXPECTED)
    np.testing.assert_array_equal(gae(last=np.array([7.0]))[0], EXPECTED)
    np.testing.assert_array_equal(gae(last=7)[0], EXPECTED)


def test_bfloat16_is_computed_in_float32() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    result = gae(R.astype(ml_dtypes.bfloat16))[0]
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-6)


def test_gaps_and_odd_addresses_do_not_matter() -> None:
    wide = np.zeros((6, 3))
    wide[:, 1] = R
    odd = np.zeros(49, dtype=np.uint8)[1:].view(np.float64)
    odd[:] = V
    assert not odd.flags.aligned
    np.testing.assert_array_equal(gae(wide[:, 1], odd, D[::-1].copy()[::-1])[0], EXPECTED)


def test_time_may_be_either_axis() -> None:
    rewards, values, dones = (np.stack([array] * 3) for array in (R, V, D))
    last = np.full(3, 7.0)
    rows = gae(rewards, values, dones, last, time_axis=1)[0]
    columns = gae(rewards.T.copy(), values.T.copy(), dones.T.copy(), last, time_axis=0)[0]
    np.testing.assert_array_equal(rows, np.stack([EXPECTED] * 3))
    np.testing.assert_allclose(columns, rows.T, rtol=1e-14)
    np.testing.assert_allclose(gae(rewards.T, values.T, dones.T, last, time_axis=-2)[0], rows.T)


def test_two_axes_without_saying_which_is_time_are_refused() -> None:
    square = np.ones((3, 3))
    with pytest.raises(errors.ArgumentError, match=r"shape \(3, 3\).*time_axis=0 for \(T, N\)"):
        gae(square, square, square, np.ones(3))


def test_ragged_sequences_are_each_computed_alone() -> None:
    double = [np.concatenate([array, array[:2]]) for array in (R, V, D)]
    result = gae(*double, [7.0, 1.0], offsets=[0, 6, 8])[0]
    np.testing.assert_array_equal(result[:6], EXPECTED)
    np.testing.assert_array_equal(result[6:], gae(R[:2], V[:2], D[:2], 1.0)[0])


def test_batched_is_one_environment_after_the_other() -> None:
    advantages, returns = primitives.compute_gae_batched(
        np.tile(R, 2), np.tile(V, 2), np.tile(D, 2), np.array([7.0, 7.0]), 6, 0.9, 0.8
    )
    np.testing.assert_array_equal(advantages, np.tile(EXPECTED, 2))
    np.testing.assert_array_equal(returns, np.tile(EXPECTED_RETURNS, 2))
    single, _ = primitives.compute_gae_batched_f32(
        rewards_flat=R, values_flat=V, dones_flat=D, last_vals=[7.0], n_steps=6, gamma=0.9, lam=0.8
    )
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, EXPECTED, rtol=1e-6)


def test_nothing_to_compute_gives_nothing() -> None:
    empty = np.zeros(0)
    assert gae(empty, empty, empty)[0].shape == (0,)
    assert gae(*[np.zeros((0, 4))] * 3, np.zeros(4), time_axis=0)[0].shape == (0, 4)
    assert gae(*[np.zeros((4, 0))] * 3, np.zeros(4), time_axis=1)[0].shape == (4, 0)
    assert gae(*[np.zeros((4, 0))] * 3, np.zeros(0), time_axis=0)[0].shape == (4, 0)
    assert gae(empty, empty, empty, [1.0, 2.0], offsets=[0, 0, 0])[0].shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": V[:5]}, r"`values` has shape \(5,\), expected that of `rewards`, \(6,\)"),
        ({"dones": D[:2]}, r"`dones` has shape \(2,\), expected that of `rewards`, \(6,\)"),
        ({"values": V.reshape(2, 3)}, r"`values` has shape \(2, 3\)"),
        ({"last": [1.0, 2.0]}, r"`last_value` has shape \(2,\), expected one number"),
        ({"truncated": D}, "`truncated` needs `final_values`"),
        ({"final_values": V}, "`final_values` needs `truncated`"),
        ({"truncated": D[:1], "final_values": V}, r"`truncated` has shape \(1,\)"),
        ({"truncated": D, "final_values": V[:1]}, r"`final_values` has shape \(1,\)"),
        ({"time_axis": 1}, r"shape \(6,\), so there is no time_axis=1"),
        ({"rewards": np.ones((1, 1, 1))}, r"shape \(1, 1, 1\), expected 1-D or 2-D"),
        ({"rewards": np.float64(1)}, r"shape \(\), expected 1-D or 2-D"),
        ({"offsets": [0, 3]}, r"goes from 0 to 3, expected 0 to 6"),
        ({"offsets": []}, r"offsets"),
        ({"offsets": [0, 4, 2, 6]}, r"offset 2 is 2"),
        ({"offsets": [0, -4, 6]}, r"`offsets`\[1\] is -4"),
        ({"offsets": [0, 6], "time_axis": 0}, "no time_axis"),
        ({"offsets": [0, 3, 6], "last": [1.0] * 3}, "one for each of 2 sequences"),
    ],
)
def test_what_does_not_fit_is_named_with_both_sizes(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((errors.ArgumentError, errors.DtypeError), match=message) as caught:
        gae(**arguments)
    assert isinstance(caught.value, (ValueError, TypeError))


@pytest.mark.parametrize("bad", [np.ones(6, complex), np.array(["a"] * 6), [[1], [1, 2]], object()])
def test_what_is_no_real_number_is_a_type_error(bad: Any) -> None:
    for name in ("rewards", "values", "dones"):
        with pytest.raises(TypeError, match=f"`{name}`") as caught:
            gae(**{name: bad})
        assert isinstance(caught.value, errors.DtypeError)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_parameters_must_be_finite(number: float) -> None:
    for arguments in ((number, 0.9), (0.9, number)):
        with pytest.raises(errors.ArgumentError, match="finite number, got"):
            primitives.compute_gae(R, V, D, 1.0, *arguments)


@pytest.mark.parametrize("steps", [0, -1, 4, 7])
def test_batched_refuses_steps_that_do_not_divide(steps: int) -> None:
    with pytest.raises(ValueError, match="n_steps"):
        primitives.compute_gae_batched(R, V, D, [1.0], steps, 0.9, 0.8)


@pytest.mark.parametrize("n", [0, -3])
def test_no_step_is_no_return(n: int) -> None:
    with pytest.raises(errors.ArgumentError, match=f"`n` must be at least 1, got {n}"):
        primitives.compute_n_step_returns(R, V, D, 1.0, n, 0.9)


@pytest.mark.parametrize("clip", [-1.0, np.nan])
def test_clips_are_not_negative(clip: float) -> None:
    with pytest.raises(errors.ArgumentError, match="`c_bar` must be at least 0"):
        primitives.compute_vtrace(R, R, V, D, 1.0, 0.9, 1.0, clip)


def test_inputs_are_left_as_they_are() -> None:
    copies = [array.copy() for array in (R, V, D)]
    gae()
    for array, copy in zip((R, V, D), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_results_that_are_kept_are_never_written_again() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(20, 40_000))
    kept = [primitives.compute_discounted_sums(row, None, 0.9) for row in rewards]
    views = [array[1::2] for array in kept]
    expected = [array.copy() for array in views]
    del kept
    for row in rewards:
        primitives.compute_discounted_sums(-row, None, 0.5)
    for view, copy in zip(views, expected, strict=True):
        np.testing.assert_array_equal(view, copy)


def test_threads_get_memory_of_their_own() -> None:
    wrong = []

    def work(number: int) -> None:
        rewards = np.full(20_000, float(number))
        for _ in range(50):
            result = primitives.compute_discounted_sums(rewards, None, 0.5)
            if result[0] != 2.0 * number or result[-1] != number:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_torch_in_torch_out() -> None:
    torch = pytest.importorskip("torch")
    rewards, values = torch.from_numpy(R).float(), torch.from_numpy(V).float()
    for dones in (torch.from_numpy(D), torch.from_numpy(D).float(), D):
        advantages, returns = gae(rewards, values, dones, torch.tensor(7.0))
        assert isinstance(advantages, torch.Tensor)
        assert isinstance(returns, torch.Tensor)
        assert advantages.dtype == torch.float32
        np.testing.assert_allclose(advantages.numpy(), EXPECTED, rtol=1e-6)
    advantages, _ = gae(rewards.bfloat16(), values, D)
    np.testing.assert_allclose(advantages.numpy(), EXPECTED, rtol=1e-6)
    with pytest.raises(errors.DtypeError, match=r"`values` requires a gradient.*values.detach\(\)"):
        gae(rewards, values.requires_grad_(), D)
    with pytest.raises(errors.DtypeError, match="`rewards` is on meta"):
        gae(rewards.to("meta"), values, D)


def test_large_torch_results_stay_while_they_are_used() -> None:
    torch = pytest.importorskip("torch")
    kept = [
        primitives.compute_discounted_sums(torch.full((40_000,), float(n)), None, 0.0)
        for n in range(20)
    ]
    assert [tensor.mean().item() for tensor in kept] == [float(n) for n in range(20)]


@pytest.mark.nightly
def test_jax_in_jax_out() -> None:
    jax = pytest.importorskip("jax")
    rewards, values, dones = (jax.numpy.asarray(array) for array in (R, V, D))
    advantages, returns = gae(rewards, values, dones, jax.numpy.asarray(7.0))
    assert isinstance(advantages, jax.Array)
    assert isinstance(returns, jax.Array)
    assert advantages.dtype == np.float32
    np.testing.assert_allclose(advantages, EXPECTED, rtol=1e-6)
    kept = [
        primitives.compute_discounted_sums(jax.numpy.full((40_000,), float(n)), None, 0.0)
        for n in range(20)
    ]
    assert [float(array[-1]) for array in kept] == [float(n) for n in range(20)]


def test_anything_with_dlpack_is_read_where_it_is() -> None:
    class Foreign:
        def __dlpack__(self, **options: Any) -> Any:
            return R.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return R.__dlpack_device__()

    np.testing.assert_array_equal(gae(Foreign())[0], EXPECTED)


def test_memory_of_another_device_is_refused_by_name() -> None:
    class Away:
        device = "gpu:3"

        def __dlpack__(self, **options: Any) -> Any:
            raise NotImplementedError

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 3)

    for name in ("rewards", "values", "dones"):
        with pytest.raises(errors.DtypeError, match=f"`{name}` is on gpu:3"):
            gae(**{name: Away()})


STUB = ast.parse(Path(_native.__file__).with_name("_native.pyi").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [n for n in primitives.__all__ if n.startswith("compute_")])
def test_help_and_stub_say_the_same(name: str) -> None:
    for node in STUB.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            assert inspect.getdoc(getattr(primitives, name)) == ast.get_docstring(node)
