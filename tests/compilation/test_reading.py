"""Operations, bytes, multiply-adds and times of small programs, written by hand, against arithmetic."""

import pytest

from attn_cnn_jax.compilation import hlo
from attn_cnn_jax.compilation.estimate import estimate
from attn_cnn_jax.compilation.operations import (
    ATTENTION,
    COLLECTIVE,
    ELEMENTWISE,
    MOVE,
    PRODUCT,
    operations,
    training_step,
)
from attn_cnn_jax.compilation.targets import Chip

PROGRAM = """HloModule jit_train_steps, is_scheduled=true

%product (a: f32[64,32], b: f32[32,16], c: f32[16]) -> f32[64,16] {
  %a = f32[64,32]{1,0} parameter(0)
  %b = f32[32,16]{1,0} parameter(1)
  %c = f32[16]{0} parameter(2)
  %dot.1 = f32[64,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="x"}
  %broadcast.1 = f32[64,16]{1,0} broadcast(%c), dimensions={1}
  ROOT %add.1 = f32[64,16]{1,0} add(%dot.1, %broadcast.1)
}

%transposed (a: f32[64,16]) -> f32[16,64] {
  %a = f32[64,16]{1,0} parameter(0)
  ROOT %transpose.1 = f32[16,64]{1,0} transpose(%a), dimensions={1,0}
}

%gathered (all: u8[1000,8], at: s32[]) -> f32[4,8] {
  %all = u8[1000,8]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %dynamic-slice.1 = u8[4,8]{1,0} dynamic-slice(%all, %at, %zero), dynamic_slice_sizes={4,8}
  ROOT %convert.1 = f32[4,8]{1,0} convert(%dynamic-slice.1)
}

%written (total: f32[256], value: f32[], at: s32[]) -> f32[256] {
  %total = f32[256]{0} parameter(0)
  %value = f32[] parameter(1)
  %at = s32[] parameter(2)
  %one = f32[1]{0} bitcast(%value)
  ROOT %dynamic-update-slice.1 = f32[256]{0} dynamic-update-slice(%total, %one, %at)
}

%heads (carry: (s32[], f32[64,16])) -> (s32[], f32[64,16]) {
  %carry = (s32[], f32[64,16]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%carry), index=0
  %sum = f32[64,16]{1,0} get-tuple-element(%carry), index=1
  %more = f32[64,16]{1,0} add(%sum, %sum), metadata={op_name="jit(train_steps)/while/body/jvp(attention)/while/add"}
  ROOT %tuple.1 = (s32[], f32[64,16]{1,0}) tuple(%n, %more)
}

%nine (carry: (s32[], f32[64,16])) -> pred[] {
  %carry = (s32[], f32[64,16]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%carry), index=0
  %limit = s32[] constant(9)
  ROOT %lt = pred[] compare(%n, %limit), direction=LT
}

%step (carry: (s32[], f32[64,32], f32[32,16], f32[16], u8[1000,8], f32[256])) -> (s32[]) {
  %carry = (s32[], f32[64,32]{1,0}, /*index=2*/f32[32,16]{1,0}, f32[16]{0}, u8[1000,8]{1,0}, f32[256]{0}) parameter(0)
  %n.1 = s32[] get-tuple-element(%carry), index=0
  %x = f32[64,32]{1,0} get-tuple-element(%carry), index=1
  %w = f32[32,16]{1,0} get-tuple-element(%carry), index=2
  %bias = f32[16]{0} get-tuple-element(%carry), index=3
  %set = u8[1000,8]{1,0} get-tuple-element(%carry), index=4
  %losses = f32[256]{0} get-tuple-element(%carry), index=5
  %value.1 = f32[] constant(0)
  %y.1 = f32[64,16]{1,0} fusion(%x, %w, %bias), kind=kCustom, calls=%product
  %t.1 = f32[16,64]{1,0} fusion(%y.1), kind=kInput, calls=%transposed
  %batch.1 = f32[4,8]{1,0} fusion(%set, %n.1), kind=kLoop, calls=%gathered
  %losses.2 = f32[256]{0} fusion(%losses, %value.1, %n.1), kind=kLoop, calls=%written
  %start = (s32[], f32[64,16]{1,0}) tuple(%n.1, %y.1)
  %loop.1 = (s32[], f32[64,16]{1,0}) while(%start), condition=%nine, body=%heads
  %all-reduce.1 = (f32[32,16]{1,0}, f32[16]{0}) all-reduce(%w, %bias), replica_groups=[1,4]<=[4], to_apply=%add
  ROOT %out = (s32[]) tuple(%n.1)
}

%steps_left (carry: (s32[])) -> pred[] {
  %carry = (s32[]) parameter(0)
  ROOT %left = pred[] constant(true)
}

ENTRY %main (count: s32[]) -> s32[] {
  %count = s32[] parameter(0)
  %random = u32[50000]{0} rng-bit-generator(%count)
  %while.1 = (s32[]) while(%count), condition=%steps_left, body=%step
  ROOT %result = s32[] get-tuple-element(%while.1), index=0
}
"""


@pytest.fixture(scope="module")
def by_name():
    program = hlo.parse(PROGRAM)
    assert training_step(program) == "step"
    return {operation.name: operation for operation in operations(program, training_step(program))}


def test_operations_of_a_step_are_those_of_its_loop_in_order(by_name):
    assert list(by_name) == ["y.1", "t.1", "batch.1", "losses.2", "more", "all-reduce.1"]
    assert [by_name[name].kind for name in by_name] == [PRODUCT, MOVE, ELEMENTWISE, ELEMENTWISE, ATTENTION, COLLECTIVE]


def test_bytes_are_those_of_operands_and_results_and_of_what_is_sliced(by_name):
    assert by_name["y.1"].bytes == 4 * (64 * 32 + 32 * 16 + 16 + 64 * 16)
    assert by_name["t.1"].bytes == 2 * 4 * 64 * 16
    assert by_name["batch.1"].bytes == 4 * 8 + 4 + 4 * 4 * 8  # the slice, its place, the result
    assert by_name["losses.2"].bytes == 4 + 4 + 4  # one number read and written, and its place
    assert by_name["all-reduce.1"].bytes == 2 * 4 * (32 * 16 + 16)


def test_products_inside_fusions_are_counted(by_name):
    assert by_name["y.1"].multiply_adds == 64 * 32 * 16
    assert by_name["y.1"].dtype == "f32"
    assert sum(operation.multiply_adds for operation in by_name.values()) == 64 * 32 * 16


def test_a_loop_counts_its_operations_as_often_as_it_runs(by_name):
    assert by_name["more"].count == 9  # the one integer that its condition compares with
    noted = PROGRAM.replace("body=%heads", 'body=%heads, backend_config={"known_trip_count":{"n":"5"}}')
    counts = {operation.name: operation.count for operation in operations(hlo.parse(noted), "step")}
    assert counts["more"] == 5
    assert counts["y.1"] == 1


def test_the_time_of_an_operation_is_the_longer_of_memory_and_arithmetic(by_name):
    slow_memory = Chip(memory=1, bandwidth=1e3, rates={"f32": 1e30}, link=1e30)
    slow_products = Chip(memory=1, bandwidth=1e30, rates={"f32": 1e3}, link=1e30)
    slow_links = Chip(memory=1, bandwidth=1e30, rates={"f32": 1e30}, link=1e3)
    for chip, kind, seconds in (
        (slow_memory, PRODUCT, by_name["y.1"].bytes / 1e3),
        (slow_memory, ATTENTION, 9 * 3 * 4 * 64 * 16 / 1e3),
        (slow_products, PRODUCT, 2 * 64 * 32 * 16 / 1e3),
        # a ring of four: what is reduced goes around twice, less the quarter that each keeps
        (slow_links, COLLECTIVE, 2 * 3 / 4 * 4 * (32 * 16 + 16) / 1e3),
    ):
        result = estimate(by_name.values(), chip, devices=4)
        assert result.seconds[kind] == pytest.approx(seconds)
        assert result.total == pytest.approx(sum(result.seconds.values()))
    assert result.flops == 2 * 64 * 32 * 16
    assert result.collectives == {"all-reduce": 4 * (32 * 16 + 16)}
    assert result.counts[ATTENTION] == 9
    assert result.bytes == sum(operation.count * operation.bytes for operation in by_name.values())


def test_cycles_that_xla_notes_count_where_the_clock_is_known(by_name):
    """Compilers for TPUs note what an operation should take: that of its vectors, and of a launch, is in it."""
    noted = PROGRAM.replace("calls=%transposed", 'calls=%transposed, backend_config={"estimated_cycles":"5000"}')
    chip = Chip(memory=1, bandwidth=1e30, rates={"f32": 1e30}, link=1e30)
    for clock, seconds in ((1e3, 5.0), (0.0, 0.0)):
        result = estimate(operations(hlo.parse(noted), "step"), chip._replace(clock=clock), devices=4)
        assert result.seconds[MOVE] == pytest.approx(seconds)


def test_alike_operations_are_listed_together(by_name):
    twice = [*by_name.values(), by_name["t.1"]._replace(name="t.2")]
    largest = {name: count for name, count, _ in estimate(twice, Chip(1, 1e3, {"f32": 1e30}, 1e30)).largest}
    assert largest["t f32[16,64]"] == 2
    assert largest["more f32[64,16]"] == 9


# A product, as TPUs write it: a convolution without a window; one of 3x3 on 4x4 pixels with a border of zeros, of
# whose 9 * 16 places (3 * 4 - 2)^2 lie inside; its gradient of the input at stride 2, on gaps of which few are hit.
CONVOLUTIONS = {
    "f32[8,4]{1,0} convolution(%a, %b), dim_labels=bf_io->bf": ("f32[8,16]", "f32[16,4]", 8 * 16 * 4),
    "f32[2,4,4,5]{3,2,1,0} convolution(%a, %b), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f": (
        "f32[2,4,4,3]",
        "f32[3,3,3,5]",
        2 * 5 * 3 * (3 * 4 - 2) ** 2,
    ),
    "f32[1,4,1]{2,1,0} convolution(%a, %b), window={size=2 pad=1_0 lhs_dilate=2}, dim_labels=b0f_0io->b0f": (
        "f32[1,2,1]",
        "f32[2,1,1]",
        4,
    ),
}


@pytest.mark.parametrize("line", CONVOLUTIONS)
def test_multiply_adds_of_convolutions_leave_out_padding_and_gaps(line):
    left, kernel, expected = CONVOLUTIONS[line]
    text = (
        f"ENTRY %main (a: {left}, b: {kernel}) -> f32[] {{\n  %a = {left} parameter(0)\n  %b = {kernel} parameter(1)\n"
        f"  ROOT %c = {line}\n}}\n"
    )
    program = hlo.parse(text)
    (operation,) = operations(program, program.entry)
    assert operation.multiply_adds == expected
    assert operation.kind == PRODUCT


def operations_of(text: str):
    program = hlo.parse(text)
    return list(operations(program, program.entry))


def test_arrays_on_the_chip_cost_no_memory_traffic():
    text = (
        "ENTRY %main (a: bf16[8,128]) -> bf16[8,128] {\n  %a = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)\n"
        "  %b = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} negate(%a)\n"
        "  ROOT %c = bf16[8,128]{1,0:T(8,128)(2,1)} negate(%b)\n}\n"
    )
    assert [operation.bytes for operation in operations_of(text)] == [2 * 8 * 128, 2 * 8 * 128]


# Programs for TPUs move weights to the chip before they read them, and fuse fusions.
ON_CHIP = """
%negated (a: f32[8,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0:T(8,128)S(1)} parameter(0)
  ROOT %negate.1 = f32[8,128]{1,0:T(8,128)S(1)} negate(%a)
}

%row (x: f32[64,128], at: s32[]) -> bf16[8,128] {
  %x = f32[64,128]{1,0:T(8,128)} parameter(0)
  %at = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %slice.1 = f32[8,128]{1,0:T(8,128)} dynamic-slice(%x, %at, %zero), dynamic_slice_sizes={8,128}
  ROOT %convert.1 = bf16[8,128]{1,0:T(8,128)(2,1)} convert(%slice.1)
}

%product (x: f32[64,128], at: s32[], w: f32[8,128]) -> f32[8,8] {
  %x = f32[64,128]{1,0:T(8,128)} parameter(0)
  %at = s32[]{:T(128)} parameter(1)
  %w = f32[8,128]{1,0:T(8,128)S(1)} parameter(2)
  %inner.1 = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(%x, %at), kind=kLoop, calls=%row
  ROOT %convolution.1 = f32[8,8]{1,0:T(8,128)S(1)} convolution(%inner.1, %w), dim_labels=bf_oi->bf
}

ENTRY %main (w: f32[8,128], x: f32[64,128], at: s32[]) -> f32[8,128] {
  %w = f32[8,128]{1,0:T(8,128)} parameter(0)
  %x = f32[64,128]{1,0:T(8,128)} parameter(1)
  %at = s32[]{:T(128)} parameter(2)
  %copy-start.1 = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%w)
  %copy-done.1 = f32[8,128]{1,0:T(8,128)S(1)} copy-done(%copy-start.1)
  %negate.2 = f32[8,128]{1,0:T(8,128)S(1)} fusion(%copy-done.1), kind=kLoop, calls=%negated
  %product.1 = f32[8,8]{1,0:T(8,128)S(1)} fusion(%x, %at, %negate.2), kind=kOutput, calls=%product
  %slice.2 = f32[8,128]{1,0:T(8,128)S(1)} slice(%x), slice={[0:8], [0:128]}
  %new.1 = f32[8,128]{1,0:T(8,128)S(1)} custom-call(), custom_call_target="AllocateBuffer"
  ROOT %copy.1 = f32[8,128]{1,0:T(8,128)} copy(%new.1)
}
"""


def test_to_the_chip_each_byte_is_read_once_and_a_fusion_reads_what_one_inside_it_slices():
    by_name = {operation.name: operation for operation in operations_of(ON_CHIP)}
    rows = 4 * 8 * 128
    assert {name: operation.bytes for name, operation in by_name.items()} == {
        "copy-start.1": rows,
        "negate.2": 0,
        "product.1": rows + 4,  # the slice, and its place
        "slice.2": rows,
        "new.1": 0,
        "copy.1": rows,
    }
    assert by_name["product.1"].multiply_adds == 8 * 8 * 128


def test_tiles_pad_the_fastest_axes():
    """`T(8,128)`: heads, the fastest axis, take 128 places, the next axis a multiple of eight; `T(128)` one axis."""
    for array, places in (
        ("f32[9,5,4]{0,1,2:T(8,128)}", 128 * 8 * 4),
        ("f32[9,5,4]{2,1,0:T(8,128)S(1)}", 9 * 8 * 128),
        ("f32[200]{0:T(128)}", 256),
        ("f32[9,5,4]{2,1,0}", 9 * 5 * 4),
        ("f32[]{:T(128)}", 1),
    ):
        assert hlo.arrays(array)[0].bytes == 4 * places


def test_a_collective_sends_its_arrays_wherever_they_lie():
    text = """
%scattered (a: f32[16,128]) -> f32[4,128] {
  %a = f32[16,128]{1,0:T(8,128)} parameter(0)
  %device = u32[]{:T(128)} partition-id()
  %all-reduce.2 = f32[16,128]{1,0:T(8,128)} all-reduce(%a), to_apply=%add
  ROOT %dynamic-slice.1 = f32[4,128]{1,0:T(8,128)} dynamic-slice(%all-reduce.2, %device, %device)
}

ENTRY %main (a: f32[16,128], b: f32[4,128]) -> f32[16,128] {
  %a = f32[16,128]{1,0:T(8,128)S(1)} parameter(0)
  %b = f32[8,128]{1,0:T(8,128)} parameter(1)
  %all-reduce.1 = f32[16,128]{1,0:T(8,128)S(1)} all-reduce(%a), to_apply=%add
  %start.1 = (f32[8,128]{1,0:T(8,128)}, f32[32,128]{1,0:T(8,128)}) all-gather-start(%b), dimensions={0}
  %done.1 = f32[32,128]{1,0:T(8,128)} all-gather-done(%start.1)
  ROOT %scatter.1 = f32[4,128]{1,0:T(8,128)} fusion(%a), kind=kCustom, calls=%scattered
}
"""
    found = operations_of(text)
    assert [operation.kind for operation in found] == [COLLECTIVE] * 3
    result = estimate(found, Chip(1, 1e30, {"f32": 1e30}, 1e3), devices=4)
    assert result.collectives == {"all-reduce": 2 * 4 * 16 * 128, "all-gather": 4 * 32 * 128}
    # around a ring of four: a sum twice, what is gathered once
    assert result.total == pytest.approx(3 / 4 * (2 * 2 * 4 * 16 * 128 + 4 * 32 * 128) / 1e3)
