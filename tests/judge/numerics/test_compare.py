"""Statistics, comparison and fresh inputs, against known values."""

import json
import socket
import subprocess
import zlib

import numpy as np
import pytest
from gpu_mcp_judge import verdicts
from gpu_mcp_judge.channel import packet_link
from gpu_mcp_judge.devices import memory_cpu
from gpu_mcp_judge.numerics import compare, error_location, parallel_map, random_inputs, small_floats, stats, tensors
from gpu_mcp_judge.timing import time_accounting

from tests.judge.harness import torch_python
from tests.judge_package import packages


@pytest.mark.parametrize(
    ("count", "ranks"),
    [(5, (1, 5)), (6, (1, 6)), (9, (2, 8)), (10, (2, 9)), (20, (6, 15)), (25, (8, 18)), (30, (10, 21))],
)
def test_ranks_of_the_medians_interval_are_those_of_the_tables(count, ranks):
    assert stats.interval_ranks(count) == ranks


def test_the_interval_covers_the_median_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        _, low, high = stats.median_interval(rng.exponential(size=15).tolist())
        hits += low <= np.log(2) <= high
    assert hits / 2000 > 0.94


@pytest.mark.parametrize(("half_width", "said"), [(0.02, ""), (0.1, ""), (0.6, "is wide, 60 % of the median")])
def test_a_wide_interval_is_said(half_width, said):
    text = stats.wide(half_width)

    assert said in text and bool(said) == bool(text)


def test_speedups_are_paired_and_averaged_geometrically():
    assert stats.speedup([4.0, 6.0, 8.0], [2.0, 3.0, 4.0]) == (2.0, 2.0, 2.0)
    assert stats.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert stats.median([3.0, 1.0, 2.0, 10.0]) == 2.5


def test_intervals_hold_what_another_evaluation_would_find():
    told = stats.times_of([10.0] * 9, [20.0] * 9, 4)
    again = stats.times_of([10.0] * 9, [20.0] * 9, 4, again=True)

    assert (told["speedup_low"], told["speedup_high"]) == (2.0, 2.0)
    assert (again["candidate"]["low_us"], again["candidate"]["high_us"]) == pytest.approx((9.8, 10.2))
    assert again["reference"]["median_us"] == 20.0 and again["speedup"] == 2.0
    assert again["speedup_low"] == pytest.approx(2 / 1.0236, rel=1e-4)
    assert again["speedup_high"] == pytest.approx(2 * 1.0236, rel=1e-4)
    alone = stats.times_of([0.1], [], 1, again=True)
    assert 0 < alone["candidate"]["low_us"] < 0.001 and "speedup" not in alone


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "got", "wrong"),
    [
        ([1.0, NAN, INF, -INF], [1.0, NAN, INF, -INF], 0),
        ([INF], [1e30], 1),
        ([INF], [-INF], 1),
        ([1.0], [NAN], 1),
        ([NAN], [1.0], 1),
        ([1.0], [INF], 1),
        ([100.0], [100.1], 0),
        ([100.0], [100.2], 1),
        ([0.0], [0.009], 0),
        ([0.0], [0.011], 1),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_comparison_of_single_values(expected, got, wrong, dtype):
    arrays = (np.array(values, dtype=dtype) for values in (expected, got))
    assert compare.compare(*arrays, dtype, rtol=1e-3, atol=1e-2).wrong == wrong


def test_large_integers_are_compared_exactly():
    expected = np.array([2**62 + 1, 5], dtype=np.int64)
    assert compare.compare(expected, expected.copy(), "int64", 0, 0).wrong == 0
    assert compare.compare(expected, np.array([2**62 + 1, 6]), "int64", 0, 0).wrong == 1


MATRIX = tensors.Tensor("y", "float32", (10, 100), ("rows", "cols"), "normal")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (np.s_[:, -24:], "all in the last 24 of 100 along cols"),
        (np.s_[:, :8], "all in the first 8 of 100 along cols"),
        (np.s_[9, :], "all in rows = 9 (the last), one block of 100 starting at element 900"),
        (np.s_[2:5, 10:20], "all in rows 2 to 4 of 10 and cols 10 to 19 of 100"),
        (np.s_[:, ::4], "all in every 4th along cols from 0"),
        (np.s_[:, [3, 7]], ""),
        (np.s_[:, np.arange(100) != 40], ""),
        (np.s_[:, np.arange(100) % 82 != 0], ""),
        (np.s_[:, np.arange(100) % 49 == 3], ""),
        (np.s_[:, np.arange(100) % 48 == 3], "all in every 48th along cols from 3"),
        (np.s_[np.arange(10) % 6 > 0], ""),
        (np.s_[1::2], "all in every 2nd along rows from 1"),
        (np.s_[0], "all in rows = 0 (the first), one block of 100 starting at element 0"),
        (np.s_[3:], "all in the last 7 of 10 along rows, one block of 700 starting at element 300"),
        (np.s_[:, 32:64], "all in cols 32 to 63 of 100"),
        (np.s_[4, 32:64], "all in rows = 4 and cols 32 to 63 of 100, one block of 32 starting at element 432"),
        (np.s_[:, np.arange(100) % 32 >= 28], "all in 4 of every 32 along cols from 28"),
        (np.s_[:, :], ""),
    ],
)
def test_wrong_elements_are_located_in_words(where, words):
    mask = np.zeros((10, 100), dtype=bool)
    mask[where] = True
    assert error_location.pattern(mask.ravel(), MATRIX) == words


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ([np.s_[:, 3]], "the first at [0, 3], [1, 3], [2, 3], [3, 3]"),
        ([np.s_[:, 3], np.s_[:, 3]], "in two calls all in cols = 3"),
        ([np.s_[:, 3], np.s_[:, 4]], "the first at [0, 3], [1, 3], [2, 3], [3, 3]"),
        ([np.s_[::2], np.s_[::3]], "the first at [0, 0], [0, 1], [0, 2], [0, 3]"),
        ([np.s_[2, 7], np.s_[1, 3]], ""),
        ([np.s_[:], np.s_[:]], ""),
        ([np.s_[0, [3, 7]], np.s_[0, [3, 8]]], "in two calls all in rows = 0 (the first)"),
    ],
)
def test_a_pattern_is_claimed_only_where_two_calls_show_the_same(masks, words):
    made = []
    for where in masks:
        mask = np.zeros(MATRIX.shape, dtype=bool)
        mask[where] = True
        made.append(mask.ravel())

    assert error_location.whereabouts(made, MATRIX) == words


def test_a_grid_shows_in_which_part_of_a_tensor_what_share_is_wrong():
    tensor = tensors.Tensor("y", "float32", (4, 100, 96), ("b", "rows", "cols"), "normal")
    mask = np.zeros((400, 96), dtype=bool)
    mask[:, -1] = True
    mask[399] = True
    found = error_location.grid(tensor, np.flatnonzero(mask))
    assert (len(found["share"]), {len(line) for line in found["share"]}) == (24, {48})
    assert (found["share"][0][0], found["share"][0][47], found["wrong"]) == (0.0, 0.5, 495)
    assert found["share"][23][0] == round(1 / 16, 3), "400 rows in 24: the last cell has 16"
    some = np.arange(0, tensor.count // 2, 97)
    looked = error_location.grid(tensor, some[mask.ravel()[some]], some)
    assert looked["looked_at"] == some.size and looked["share"][23][0] == -1 and looked["share"][0][0] == 0
    scalar = error_location.grid(tensors.Tensor("s", "float32", (), (), "normal"), np.array([0]))
    assert scalar["share"] == [[1.0]]


@pytest.mark.parametrize(
    ("distribution", "mean", "deviation"),
    [("normal", 0, 1), ("uniform", 0.5, 0.2887), ("offset", 3, 1), ("large", 0, 1000), ("integers", 49.5, 28.866)],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_inputs_have_the_distribution_that_was_asked_for(distribution, mean, deviation, dtype):
    well = random_inputs.Well("ab" * 32)
    into = np.zeros((3, 100_000), dtype=compare.STORAGE[dtype])
    well.fill(into, dtype, distribution)
    values = compare.numbers(into, dtype).astype(np.float64)
    assert values.mean() == pytest.approx(mean, abs=0.03 * deviation)
    assert values.std() == pytest.approx(deviation, rel=0.03)


def test_one_in_a_thousand_inputs_is_an_outlier():
    well = random_inputs.Well("ab" * 32)
    into = np.zeros((1, 3_000_000), dtype=np.float32)
    well.fill(into, "float32", "outliers")
    assert 0.0003 < (np.abs(into) > 10).mean() < 0.002


def test_two_rounds_share_no_input_and_a_seed_gives_the_same_again():
    def rounds(seed):
        well, found = random_inputs.Well(seed), []
        for _ in range(2):
            into = np.zeros((2, 100_000), dtype=np.float32)
            well.fill(into, "float32", "normal")
            found.append(into.ravel())
        return found

    first, second = rounds("01" * 32)
    assert not np.intersect1d(first[:1000], second[:1000]).size
    assert (rounds("01" * 32)[1] == second).all()


def test_what_is_drawn_does_not_depend_on_the_number_of_cores(monkeypatch):
    def drawn():
        into = np.zeros((5, 700_000), dtype=np.float32)
        random_inputs.Well("02" * 32).fill(into, "float32", "normal")
        return into

    alone = drawn()
    monkeypatch.setattr(parallel_map, "MOST", 1)
    assert (drawn() == alone).all()


def test_hardly_any_two_inputs_are_equal():
    into = np.zeros((1, 100_000), dtype=np.float32)
    random_inputs.Well("03" * 32).fill(into, "float32", "normal")
    assert np.unique(into).size > 99_000


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [("int8", -128, 127), ("uint8", 0, 255), ("int32", 0, 99), ("int64", 0, 99), ("bool", 0, 1)],
)
@pytest.mark.parametrize("distribution", ["normal", "integers"])
def test_bytes_have_every_value_and_longer_integers_few(distribution, dtype, least, most):
    into = np.zeros((3, 100_000), dtype=compare.STORAGE[dtype])
    random_inputs.Well("03" * 32).fill(into, dtype, distribution)
    values, times = np.unique(into, return_counts=True)
    assert values.tolist() == list(range(least, most + 1))
    assert times.tolist() == pytest.approx([times.mean()] * times.size, rel=0.2)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_longer_integers_that_are_drawn_in_full_have_every_bit(dtype):
    into = np.zeros((3, 100_001), dtype=dtype)
    random_inputs.Well("04" * 32).fill(into, dtype, "full")
    bits = np.unpackbits(into.view(np.uint8).reshape(-1, into.itemsize), axis=1)
    assert bits.mean(axis=0).tolist() == pytest.approx([0.5] * bits.shape[1], abs=0.02)
    assert np.unique(into).size > 299_900


@pytest.mark.parametrize("distribution", ["normal", "uniform", "offset", "outliers", "large"])
def test_inputs_of_float64_have_all_bits_of_a_double(distribution):
    into = np.zeros((3, 100_003))
    random_inputs.Well("03" * 32).fill(into, "float64", distribution)
    assert np.unique(into).size == into.size
    assert (into.astype(np.float32) == into).mean() < 1e-4
    if distribution == "uniform":
        bits = (into * 2.0**53).astype(np.int64)
        assert (bits == into * 2.0**53).all() and bits.min() >= 0 and bits.max() < 1 << 53
        assert [(bits >> place & 1).mean() for place in range(53)] == pytest.approx([0.5] * 53, abs=0.01)
    if distribution == "outliers":
        assert 0.0003 < (np.abs(into) > 10).mean() < 0.002


def test_normal_inputs_have_the_quantiles_of_the_normal_distribution():
    from statistics import NormalDist

    into = np.zeros((1, 1_000_000), dtype=np.float32)
    random_inputs.Well("04" * 32).fill(into, "float32", "normal")
    parts = [0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999]
    expected = [NormalDist().inv_cdf(part) for part in parts]
    assert np.quantile(into, parts) == pytest.approx(expected, abs=0.03)


def test_an_error_in_one_lane_is_raised():
    def work(number):
        if number == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        parallel_map.spread(8, work)


def test_the_account_adds_up_and_an_inner_part_is_not_counted_twice():
    book = time_accounting.Ledger()
    with book.part("wait"):
        with book.part("fill"):
            sum(range(100_000))
        book.move(0.5, "candidate")
    found = book.report()
    assert sum(found[name] for name in (*time_accounting.PARTS, "other")) == pytest.approx(found["total"], abs=1e-3)
    assert found["candidate"] == 0.5
    assert found["fill"] > 0
    assert found["wait"] < 0


def test_bfloat16_rounds_to_the_nearest_even():
    values = np.array([1.0, 1.00390625, 1.01171875, 3.0e38, NAN, -2.5], dtype=np.float32)
    assert [hex(v) for v in small_floats.bfloat16_bits(values)] == [
        "0x3f80",
        "0x3f80",
        "0x3f82",
        "0x7f62",
        "0x7fc0",
        "0xc020",
    ]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "float4_e2m1fn_x2"])
def test_a_poisoned_byte_is_no_common_answer(dtype):
    words = {memory_cpu.poison_word(dtype, 1, random) for random in (*range(600), (1 << 64) - 1)}

    assert words == set(range(2, 255))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_poison_is_a_quiet_nan_with_random_payload(dtype):
    size = tensors.ITEM_BYTES[dtype]
    words = {memory_cpu.poison_word(dtype, size, r) for r in (0, 1 << 63, 12345, (1 << 64) - 1)}
    stored = np.array(sorted(words), dtype=memory_cpu.WORDS[size]).view(compare.STORAGE[dtype])
    assert len(words) == 4
    assert np.isnan(compare.numbers(stored, dtype)).all()


def test_guards_touch_their_tensor_on_both_sides_and_tensors_stay_aligned():
    items = [tensors.Tensor("a", "int8", (3,), ("n",), ""), tensors.Tensor("b", "float64", (100_000,), ("n",), "")]
    plan = tensors.layout(items, 2, guarded=True)
    assert plan.guard_bytes == (256, 4096)
    assert all(offset % 256 == 0 for offset in (*plan.offsets, plan.stride))
    assert plan.offsets[1] - 4096 >= plan.offsets[0] + 3 + 256


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_numbers_that_differ_are_told_apart_in_the_reason(dtype: str):
    kind = compare.STORAGE[dtype]
    expected = np.array([2**40 if dtype == "int64" else 0.1], dtype=kind)
    got = expected + 1 if dtype == "int64" else np.nextafter(expected, kind(1))
    difference = compare.compare(expected, got, dtype, 0.0, 0.0)
    reason = compare.describe(expected, got, difference, tensors.Tensor("y", dtype, (1,), ("n",), "normal"))
    have, want = reason.split(";")[0].removeprefix("output y[0] is ").split(", expected ")
    assert have != want and (float(have) != float(want) or int(have) != int(want))


def test_a_process_that_ran_out_of_memory_is_told_how_much_there_was():
    told = verdicts.death({"oom": True, "memory_bytes": 16 << 30, "signal": 9})

    assert told == "ran out of memory and was killed: it needed more than its limit of 17.2 GB"


def test_long_messages_travel_packed_and_what_does_not_unpack_is_garbage():
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one, other = packet_link.Link(ends[0]), packet_link.Link(ends[1])
    long = {"inputs": [{"name": f"weight_{i}", "shape": [8, 8]} for i in range(2000)]}
    one.send(long)
    assert len(json.dumps(long)) > packet_link.MAX_PACKET_BYTES and other.receive(1) == long
    for bomb in (
        b"z" + zlib.compress(b" " * (packet_link.MAX_MESSAGE_BYTES + 1)),
        b"z" + zlib.compress(b"{}")[:-3],
        b"zz",
    ):
        ends[0].send(bomb)
        with pytest.raises(packet_link.LinkGarbage):
            other.receive(1)
    for end in ends:
        end.close()


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
"""Source: OCP Microscaling Formats 1.0, table 5."""


def test_eight_and_four_bits_stand_for_the_numbers_of_the_standard():
    e4m3, e5m2 = (small_floats.table(name) for name in small_floats.FLOAT8)

    assert [e4m3[c] for c in (0x00, 0x01, 0x08, 0x38, 0x7E, 0xFE)] == [0, 2.0**-9, 2.0**-6, 1, 448, -448]
    assert [e5m2[c] for c in (0x01, 0x04, 0x3C, 0x7B, 0xFC)] == [2.0**-16, 2.0**-14, 1, 57344, -np.inf]
    assert np.flatnonzero(np.isnan(e4m3)).tolist() == [0x7F, 0xFF]
    assert np.flatnonzero(np.isnan(e5m2)).tolist() == [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]
    assert small_floats.table(small_floats.FLOAT4).tolist() == [*E2M1, *(-v for v in E2M1)]


@pytest.mark.parametrize("name", small_floats.FLOAT8)
def test_every_number_of_eight_bits_rounds_to_its_own_code_and_a_middle_to_the_even_one(name):
    values = small_floats.table(name)
    finite = np.flatnonzero(np.isfinite(values))
    assert small_floats.float8_bits(values[finite], name).tolist() == finite.tolist()
    low = finite[finite < 128][:-1]
    middles = (values[low].astype(np.float64) + values[low + 1]) / 2
    assert small_floats.float8_bits(middles, name).tolist() == (low + (low & 1)).tolist()


TORCH_ROUNDS = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
from gpu_mcp_judge.numerics import small_floats
rng = np.random.default_rng(0)
numbers = np.concatenate([rng.standard_normal(20000) * s for s in (1e-4, 1e-2, 1, 100, 1e4)]).astype(np.float32)
for name in small_floats.FLOAT8:
    kind = getattr(torch, name)
    codes = torch.arange(256, dtype=torch.uint8).view(kind).float().numpy()
    assert np.array_equal(codes, small_floats.table(name), equal_nan=True)
    some = numbers[np.abs(numbers) <= np.nanmax(np.where(np.isfinite(codes), codes, np.nan))]
    assert np.array_equal(torch.from_numpy(some).to(kind).view(torch.uint8).numpy(), small_floats.float8_bits(some, name))
"""


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
def test_eight_bits_are_torchs():
    subprocess.run([torch_python(), "-c", TORCH_ROUNDS, packages()], check=True)


def test_an_unwritten_bool_is_told_and_a_scalar_has_no_index():
    flags, scalar = tensors.Tensor("f", "bool", (3,), ("n",), "normal"), tensors.Tensor("s", "int64", (), (), "normal")
    want, have = np.array([1, 0, 1], np.uint8), np.array([1, 231, 1], np.uint8)
    words = compare.describe(want, have, compare.compare(want, have, "bool", 0, 0), flags, 231)
    one, other = np.array([7]), np.array([9])

    assert words.startswith("output f[1] was not written, expected 0")
    assert compare.describe(one, other, compare.compare(one, other, "int64", 0, 0), scalar).startswith("output s is 9")
