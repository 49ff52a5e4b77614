"""The CUDA kernels of attention without its gap, run without a GPU, against an explicit matrix in double precision.

Their own source is compiled for a processor, and what a GPU does at once is done one after the other (``stand_in``).
That finds wrong numbers, barriers that are missing or that not all threads reach, addresses out of range or misaligned.
What nvcc makes of the source, and how fast it is, only a GPU shows.
"""

import ctypes
import mmap
import random
from dataclasses import dataclass, replace

import pytest

torch = pytest.importorskip("torch")

from bulkedge.nn import native  # noqa: E402

TYPES = (torch.bfloat16, torch.float16)
DIMS = range(8, 257, 8)  # that the node lets through
LAYOUTS = ("by heads", "by tokens", "packed")
FORBIDDEN = 1 << 24  # bytes before and behind every tensor that nobody may read or write


@dataclass(frozen=True)
class Case:
    """What is computed, ``target + own source - scale C source``, and how it lies in memory."""

    dtype: torch.dtype = torch.bfloat16
    batch: int = 2
    heads: int = 3
    tokens: int = 100
    dim: int = 64
    tiles: int = 1  # of a segment
    own: float = 0.0
    scale: float = 1.0
    adjoint: bool = False
    in_place: bool = False
    layouts: tuple[str, str, str] = ("by heads",) * 3  # target, source, result
    seed: int = 0

    @property
    def shape(self):
        return self.batch, self.heads, self.tokens, self.dim


def guarded(count, dtype, *, flush_right):
    """Pages full of NaN between others that are forbidden, and the numbers next to one of their ends."""
    size = -(-count * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, size + 2 * FORBIDDEN)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for start in (address, address + FORBIDDEN + size):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(FORBIDDEN), 0) == 0
    memory = torch.frombuffer(pages, dtype=dtype, offset=FORBIDDEN, count=size // dtype.itemsize).fill_(torch.nan)
    return memory, memory[-count:] if flush_right else memory[:count]


@dataclass(frozen=True)
class Held:
    """A view and all the memory around it."""

    memory: torch.Tensor
    view: torch.Tensor

    @classmethod
    def of(cls, values, layout, *, flush_right):
        batch, heads, tokens, dim = values.shape
        whole = {
            "by heads": (batch, heads, tokens, dim),
            "by tokens": (batch, tokens, heads, dim),
            "packed": (batch, tokens, 3, heads, dim),
        }[layout]
        memory, numbers = guarded(torch.Size(whole).numel(), values.dtype, flush_right=flush_right)
        view = numbers.view(whole)
        if layout != "by heads":
            view = (view[:, :, 2 if flush_right else 0] if layout == "packed" else view).transpose(1, 2)
        return cls(memory, view.copy_(values))

    def outside(self):
        """Bits of what does not belong to the view."""
        memory, start = self.memory.clone(), self.view.storage_offset() - self.memory.storage_offset()
        torch.as_strided(memory, self.view.shape, self.view.stride(), start).zero_()
        return memory.view(torch.int16)


class Kernels:
    """As C++ calls them."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        self.library.take_means.restype = ctypes.c_char_p

    def take_means(self, case, three, totals, length, *, summed=False):
        """Into the third of three tensors; an error is what CUDA would return, or worse."""
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in (*three, totals)]
        strides = (ctypes.c_int64 * 9)(*(step for each in three for step in each.stride()[:3]))
        sizes = (case.batch * case.heads, case.heads, case.tokens, case.dim, totals.shape[1], length)
        flags = map(ctypes.c_bool, (case.adjoint, case.dtype == torch.bfloat16, summed))
        sizes = (ctypes.c_int64 * 6)(*sizes)
        factors = map(ctypes.c_float, (case.own, case.scale))
        failed = self.library.take_means(*pointers, strides, sizes, *factors, *flags)
        if failed:
            raise RuntimeError(failed.decode())


@pytest.fixture(scope="module")
def kernels(means):
    return Kernels(means)


def matrix(case):
    """Running means, one row for each token; transposed for the adjoint."""
    means = torch.ones(case.tokens, case.tokens, dtype=torch.double).tril()
    means /= means.sum(-1, keepdim=True)
    return means.mT if case.adjoint else means


def compare(case, found, target, source, before=0.0):
    """Errors: one rounding to the type, to the nearest number, and those of single precision, which add up at worst.

    A sum of n terms has n - 1 of them, in whatever order. Ten more are of the weight, both coefficients, the factor, a
    product with each of weight, factor and coefficient, the sum and the difference, and of what somebody has added to
    the sums ``before``.
    """
    info, means = torch.finfo(case.dtype), matrix(case)
    expected = target + case.own * source - case.scale * (means @ source + before)
    size = target.abs() + abs(case.own) * source.abs() + abs(case.scale) * (means @ source.abs() + before)
    allowed = info.eps / 2 * expected.abs() + info.eps * info.smallest_normal / 2  # the second where it underflows
    allowed += (1 + info.eps) * (case.tokens + 10) * 2.0**-24 * size
    close = (found.double() - expected).abs() <= allowed
    assert close.all(), (case, (~close).nonzero()[:3])


def segment_sums(case, source, length):
    """Of all segments, in the order in which tokens are walked."""
    if case.adjoint:
        source = (source / torch.arange(1, case.tokens + 1)[:, None]).flip(-2)
    sums = [each.sum(-2) for each in source.split(length, -2)]
    return torch.stack(sums, -2).flatten(0, 1)


def check(kernels, case):
    """All that is promised of one task: its numbers, the sums that it leaves, and the memory that it does not touch."""
    generator = torch.Generator().manual_seed(case.seed)
    drawn = [torch.randn(case.shape, generator=generator).to(case.dtype) + shift for shift in (0.0, 0.5, torch.nan)]
    right = {"flush_right": case.seed % 2 == 0}
    held = [Held.of(each, layout, **right) for each, layout in zip(drawn, case.layouts, strict=True)]
    if case.in_place:
        held[2] = held[0]
    length = case.tiles * kernels.library.tile(case.dim)
    shape = case.batch * case.heads, -(-case.tokens // length), case.dim
    memory, totals = guarded(torch.Size(shape).numel(), torch.float32, **right)
    three, totals, untouched = [each.view for each in held], totals.view(shape), [each.outside() for each in held]

    kernels.take_means(case, three, totals, length)
    target, source = (each.double() for each in drawn[:2])
    compare(case, three[2], target, source)
    for each, before in zip(held, untouched, strict=True):
        assert torch.equal(each.outside(), before), case
    assert torch.equal(three[1], drawn[1])
    assert case.in_place or torch.equal(three[0], drawn[0])

    bound = length * 2.0**-24 * segment_sums(case, source.abs(), length)
    close = (totals - segment_sums(case, source, length)).abs() <= bound
    assert close[:, :-1].all(), case
    assert int(memory.isfinite().sum()) == close[:, :-1].numel(), case  # of the last one nobody needs the sum
    check_known_sums(kernels, case, three, totals, length)


def check_known_sums(kernels, case, three, totals, length):
    """With the sums that were left the result is the same; with others it is theirs, and they stay as they are."""
    target = three[1].flip(-1)  # any will do

    def taken(*, summed):
        three[0].copy_(target)
        kernels.take_means(case, three, totals, length, summed=summed)
        return three[2].clone()

    assert torch.equal(taken(summed=False), taken(summed=True)), case
    shifts = 1 + torch.arange(totals.shape[1])[:, None] + torch.arange(case.dim) / 8
    given = totals.add_(shifts).clone()
    found = taken(summed=True)
    assert torch.equal(given.view(torch.int32), totals.view(torch.int32)), case
    before = (shifts.cumsum(0) - shifts).repeat_interleave(length, 0)[: case.tokens].double()
    before = before.flip(0) if case.adjoint else before / torch.arange(1, case.tokens + 1)[:, None]
    compare(case, found, target.double(), three[1].double(), before)


@pytest.mark.parametrize("dim", DIMS)
def test_tokens_around_a_tile(kernels, dim):
    """Also where the threads of a block are not a multiple of those of a row, as for 24 columns."""
    tile = kernels.library.tile(dim)
    assert tile == 256 // (dim // 8) * 4
    for tokens in (1, 2, tile - 1, tile, tile + 1):
        case = Case(batch=1, heads=2, tokens=tokens, dim=dim, dtype=TYPES[dim // 8 % 2], seed=tokens)
        check(kernels, case)
        check(kernels, replace(case, adjoint=True, in_place=True))


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_segments(kernels, layout, dtype, adjoint):
    """More of them than a block has lanes, so that lanes add up several; and several tiles of each."""
    case = Case(dtype=dtype, heads=2, tokens=500, dim=256, adjoint=adjoint, layouts=(layout,) * 3)
    check(kernels, case)
    check(kernels, replace(case, tiles=7, scale=-0.3))
    check(kernels, replace(case, dim=72, tiles=2))


def drawn_case(seed):
    rng = random.Random(seed)
    dim, tiles = rng.choice(DIMS), rng.choice((1, 1, 2, 3))
    tile = 256 // (dim // 8) * 4
    return Case(
        dtype=rng.choice(TYPES),
        batch=rng.choice((1, 2)),
        heads=rng.choice((1, 2, 3)),
        tokens=rng.choice((1, 2, tile - 1, tile, tile + 1, *(rng.randrange(1, min(20 * tile, 700)) for _ in range(5)))),
        dim=dim,
        tiles=tiles,
        own=rng.choice((0.0, 0.0, 1.0, rng.uniform(-2, 2))),
        scale=rng.choice((1.0, -1.0, rng.uniform(-2, 2))),
        adjoint=rng.random() < 0.5,
        in_place=rng.random() < 0.5,
        layouts=tuple(rng.choice(LAYOUTS) for _ in range(3)),
        seed=seed,
    )


@pytest.mark.parametrize("part", range(4))
def test_any_task(kernels, part):
    """Two hundred of them: types, sizes, layouts, signs and directions."""
    for seed in range(50 * part, 50 * (part + 1)):
        check(kernels, drawn_case(seed))


def test_a_tile_of_no_columns(kernels):
    """Is asked for before the node sees that there is nothing to do."""
    assert kernels.library.tile(0) > 0


def test_misaligned_addresses(kernels):
    """Which a GPU refuses, and a processor would not mind."""
    case = Case(batch=1, heads=1, tokens=4, dim=8)
    three = [torch.zeros(1 + 32, dtype=case.dtype)[1:].view(case.shape) for _ in range(3)]
    with pytest.raises(RuntimeError, match="misaligned"):
        kernels.take_means(case, three, torch.zeros(1, 1, 8), 1024)
    check(kernels, case)


FAULTS = {
    "a token that is read and not used": (
        "if (begin + i < last) {\n        const int64_t at",
        "if (begin + i <= last) {\n        const int64_t at",
    ),
    "no barrier before lanes are added": ("sums[c];\n  __syncthreads();", "sums[c];"),
    "no barrier before a tile is scanned": ("sums[7]);\n    __syncthreads();", "sums[7]);"),
    "no barrier after a tile was scanned": ("    }\n    __syncthreads();\n    const float4", "    }\n    const float4"),
    "a barrier that some threads do not reach": (
        "from there\n    }\n    __syncthreads();",
        "from there\n      __syncthreads();\n    }",
    ),
    "threads that leave early": (
        "    float sums[COLUMNS] = {};\n#pragma",
        "    if (begin >= last) return;\n    float sums[COLUMNS] = {};\n#pragma",
    ),
    "a token too many in a segment": ("last = min(first + task.length,", "last = min(first + task.length + 1,"),
    "a token too few": ("task.tokens);\n  for (int tile", "task.tokens) - 1;\n  for (int tile"),
    "sums of segments without the weights of the adjoint": (
        "add<Pair>(sums, weight(task, at), load(",
        "add<Pair>(sums, 1.0f, load(",
    ),
    "running sums without them": ("add<Pair>(running, weight(task, at),", "add<Pair>(running, 1.0f,"),
    "a token's own value taken away": ("pair.y + own * more.y", "pair.y - own * more.y"),
    "the scale of the adjoint": ("task.adjoint ? task.scale :", "task.adjoint ? task.scale / (at + 1) :"),
    "a lane that gets its own sum twice": (
        "place.own] = running;\n        running += more;",
        "place.own] = running += more;",
    ),
    "tiles that do not go on": ("before[place.own] = running;", ""),
    "segments that lanes add several times": ("segment += blockDim.y", "segment += blockDim.y - 1"),
    "tokens that lanes add several times": ("position += blockDim.y", "position += blockDim.y - 1"),
    "lanes of another width": ("lanes + place.lane * task.dim", "lanes + place.lane * (task.dim - 8)"),
    "shared memory that is too small": ("shared[THREADS * COLUMNS];", "shared[THREADS * COLUMNS - 8];"),
    "the layout of another tensor": ("at * task.result_layout", "at * task.target_layout"),
    "heads of another batch": ("place.head / task.heads *", "place.head % task.heads *"),
    "sums that are known, made again": ("if (!summed && task.segments > 1)", "if (task.segments > 1)"),
    "sums of the last segment": ("if (place.segment + 1 == task.segments) return;", ""),
}
"""Changes of the kernels that tests here may not overlook.

The barrier at the end of ``add_lanes`` is none of them: threads read of that row what they have written themselves.
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(compile_means, fault):
    right, wrong = FAULTS[fault]
    source = native.SOURCES[1].read_text(encoding="utf-8")
    assert right in source, "the kernels have changed: so must the fault"
    faulty = Kernels(compile_means(source.replace(right, wrong)))

    def noticed(case):
        try:
            check(faulty, case)
        except (AssertionError, RuntimeError):
            return True
        return False

    assert any(noticed(drawn_case(seed)) for seed in range(200))
