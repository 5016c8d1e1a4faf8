"""A CUDA device that is simulated on the CPU, to find device mistakes where there is no GPU.

Inside ``with simulated_cuda() as gpu:`` tensors can be made on or moved to ``"cuda"``. They say
that they lie on ``cuda:0``; every operation on them is done on CPU tensors inside, below autograd,
so that results equal the CPU's. Refused as CUDA refuses it: operations that mix devices (a CPU
tensor of dimension 0 may enter a pointwise one, CPU rows may index a CUDA tensor), ``numpy()``,
a generator of the other device, products of whole numbers. What makes the host wait for the device
is counted with its place in ``gpu.waits``. With one seed both devices draw different numbers.

Not simulated: speed, memory, streams, rounding, the order of ties in ``topk``, errors that come
late, ``torch.load(map_location=)``; ``model.cuda()`` makes new parameters where CUDA keeps them.
Import this before the first backward pass of a process: autograd counts its devices once. As a
fixture, for tests marked ``cuda`` where there is no device:

    @pytest.fixture(autouse=True)
    def device(request):
        real = torch.cuda.is_available() or "cuda" not in request.keywords
        with nullcontext() if real else simulated_cuda() as gpu:
            yield gpu
"""

from __future__ import annotations

import copy
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_Generator = torch.Generator
_CUDA, _CPU, _NAMES = torch.device("cuda", 0), torch.device("cpu"), ("cuda", "simcuda")
_OTHER = 0x5DEECE66D  # mixed into seeds, so that devices differ
_SOURCE = {"_to_copy": 0, "copy_": 1, "fill_": 1}  # position of the source argument of copies
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
# Besides the pointwise operations these accept a CPU tensor of dimension 0.
_SCALARS = {"masked_fill", "index_fill", "floor_divide", "__and__", "__or__", "__xor__"}
_PRODUCTS = {"mm", "mv", "dot", "bmm", "addmm", "addmv", "baddbmm"}
_CHECKED = {"_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_eig", "multinomial"}


class Record:
    """What would have made the host wait: ``waits[kind, operation, place]`` is a count.

    Kinds: "read" (device to host), "write" (host to device, from memory that is not pinned),
    "shape" (an operation on whose result's shape or success the host waits). Places are lines
    of ``package``, followed by the line of another library that waits, if one does.
    """

    def __init__(self, package: str) -> None:
        self._folder = f"/{package}/"
        self.clear()

    def clear(self) -> None:
        self.operations = 0
        self.waits: Counter[tuple[str, str, str]] = Counter()

    def count(self, *kinds: str) -> int:
        return sum(n for (kind, _, _), n in self.waits.items() if not kinds or kind in kinds)

    def wait(self, kind: str, operation: str) -> None:
        place, frame = "", sys._getframe(1)
        while frame is not None:
            path, line = frame.f_code.co_filename, frame.f_lineno
            if self._folder in path:
                own = f"{path.rpartition(self._folder)[2]}:{line}"
                place = f"{own} < {place}" if place else own
                break
            if not place and path != __file__ and "/torch/" not in path:
                place = f"{path[-40:]}:{line}"
            frame = frame.f_back
        self.waits[kind, operation, place or "autograd"] += 1


_record = Record("")
_numbers = _Generator().manual_seed(0).get_state()  # state of the device's global generator


def _set_numbers(state: Tensor, device: object = None) -> None:
    global _numbers
    _numbers = state.clone()


def _seed(seed: int) -> None:
    _set_numbers(_Generator().manual_seed(int(seed) ^ _OTHER).get_state())


def _always(value: object) -> Any:
    return lambda *args, **kwargs: value


# Replacements for functions of torch.cuda.
_RUNTIME = {"is_available": _always(True), "device_count": _always(1), "current_device": _always(0)}
_RUNTIME |= {"is_initialized": _always(True), "_is_in_bad_fork": _always(False)}
_RUNTIME |= {"get_device_name": _always("simulated"), "synchronize": _always(None)}
_RUNTIME |= {"memory_allocated": _always(0), "max_memory_allocated": _always(1)}
_RUNTIME |= {"reset_peak_memory_stats": _always(None), "manual_seed": _seed}
_RUNTIME |= {"manual_seed_all": _seed, "set_rng_state": _set_numbers}
_RUNTIME |= {"device": lambda device: nullcontext()}
_RUNTIME |= {"get_rng_state": lambda device=None: _numbers.clone()}
# The device as C++ knows it: without CUDA autograd has no queue for the name "cuda".
_setup_privateuseone_for_python_backend("simcuda", SimpleNamespace(**_RUNTIME))
_INSIDE = torch.device("simcuda", 0)


class CudaTensor(Tensor):
    """A tensor of the simulated device; ``inner`` is the CPU tensor that holds its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: _CUDA)
    is_cuda = property(lambda self: True)
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, requires_grad: bool = False) -> CudaTensor:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        self = Tensor._make_wrapper_subclass(
            cls, inner.size(), dtype=inner.dtype, device=_INSIDE, **layout
        )
        self.inner = inner
        return self.requires_grad_() if requires_grad else self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, value: Tensor) -> None:
        Tensor.data.__set__(self, value)
        self.inner = value.inner

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")

    def __repr__(self, **options: object) -> str:
        return f"{self.inner!r} on cuda:0"

    def __reduce_ex__(self, protocol: object) -> Any:
        return CudaTensor, (self.inner, self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> CudaTensor:
        if id(self) not in memo:  # views of one storage become views of one storage
            new = CudaTensor(copy.deepcopy(self.inner, memo), self.requires_grad)
            memo[id(self)], new.grad = new, copy.deepcopy(self.grad, memo)
            others = {key: value for key, value in self.__dict__.items() if key != "inner"}
            new.__dict__.update(copy.deepcopy(others, memo))
        return memo[id(self)]


class _IsGenerator(type(_Generator)):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)


class CudaGenerator(_Generator, metaclass=_IsGenerator):
    """Stands in for ``torch.Generator``."""

    device = property(lambda self: self.of)

    def __new__(cls, device: torch.device | str = "cpu") -> CudaGenerator:
        self = super().__new__(cls, device="cpu")
        self.of = _CUDA if torch.device(device).type in _NAMES else _CPU
        return self

    def manual_seed(self, seed: int) -> CudaGenerator:
        return super().manual_seed(seed ^ _OTHER if self.of is _CUDA else seed)


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do an operation on the CPU tensors inside, unless CUDA would refuse it."""
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [leaf for leaf in leaves if isinstance(leaf, CudaTensor)]
    device = kwargs.get("device")
    target = device.type in _NAMES if device is not None else bool(there)
    if not there and not target:
        return func(*args, **kwargs)
    name = func._schema.name.removeprefix("aten::")
    _check(func, name, args, leaves, there)
    _count(func, name, args, kwargs, target)
    if torch.Tag.inplace_view in func.tags:  # squeeze_ and the like: the outer shape changes too
        with no_dispatch():
            func(*args, **kwargs)
    args, kwargs = tree_map(_unwrapped, (args, kwargs))
    with ExitStack() as stack:
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            torch.set_rng_state(_numbers)
            stack.callback(lambda: _set_numbers(torch.get_rng_state()))
        out = func(*args, **kwargs)
    known = {id(leaf): leaf for leaf in leaves} | {id(leaf.inner): leaf for leaf in there}

    def wrapped(leaf: object) -> object:
        same = known.get(id(leaf))
        if same is None:
            return CudaTensor(leaf) if target and isinstance(leaf, Tensor) else leaf
        if same.shape != leaf.shape or same.stride() != leaf.stride():
            raise NotImplementedError(f"{name} changes a shape in place: not simulated")
        return same

    return tree_map(wrapped, out)


def _unwrapped(leaf: object) -> object:
    if isinstance(leaf, CudaTensor):
        return leaf.inner
    return _CPU if isinstance(leaf, torch.device) and leaf.type in _NAMES else leaf


def _check(func: Any, name: str, args: Any, leaves: list[Tensor], there: list[Tensor]) -> None:
    """Refuse what CUDA refuses."""
    base = name if name.startswith("__") else name.rstrip("_")
    if base in _PRODUCTS and any(not leaf.is_floating_point() for leaf in there):
        raise RuntimeError(f"{name} is not implemented on CUDA for {there[0].dtype}")
    here = [leaf for leaf in leaves if not isinstance(leaf, CudaTensor)]
    if not here or not there or name in _SOURCE:
        return
    if name in _INDEXING:  # CPU rows may index both; 0-dim. values may lie anywhere
        rest = tree_leaves(args[2:3] if isinstance(args[0], CudaTensor) else args[1:3])
        others = [leaf for leaf in rest if isinstance(leaf, Tensor)]
        refused = any(leaf.dim() and leaf.device != args[0].device for leaf in others)
    else:
        plain = getattr(getattr(torch.ops.aten, base, None), func._overloadname, func)
        takes_scalars = torch.Tag.pointwise in plain.tags or base in _SCALARS
        written = name.endswith("_") and args[0] is here[0]
        refused = not takes_scalars or written or any(leaf.dim() for leaf in here)
    if refused:
        tensors = ", ".join(f"{tuple(leaf.shape)} on {leaf.device}" for leaf in leaves)
        text = "Expected all tensors to be on the same device, but found at least two devices"
        raise RuntimeError(f"{text}, cuda:0 and cpu! ({name} of {tensors})")


def _count(func: Any, name: str, args: Any, kwargs: Any, target: bool) -> None:
    """Count what makes the host wait."""
    _record.operations += 1
    if name in _SOURCE:
        source = isinstance(args[_SOURCE[name]], CudaTensor)
        to = target if name == "_to_copy" else isinstance(args[0], CudaTensor)
        if source != to and not (to and (name == "fill_" or kwargs.get("non_blocking"))):
            _record.wait("read" if source else "write", name)
    elif name in _INDEXING:
        for rows in args[1]:
            if isinstance(rows, CudaTensor) and rows.dtype in (torch.bool, torch.uint8):
                _record.wait("shape", f"{name} by a mask")
            elif isinstance(rows, Tensor) and not isinstance(rows, CudaTensor):
                _record.wait("write", f"{name} by rows of the CPU")
    elif torch.Tag.data_dependent_output in func.tags:
        _record.wait("read", name)
    elif torch.Tag.dynamic_output_shape in func.tags or name in _CHECKED:
        _record.wait("shape", name)


class _Operations(TorchDispatchMode):
    """Sees what is made on the device and copied to it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """Translates the name "cuda" for C++, and checks generators."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            on = kwargs.get("device") or getattr(args[0] if args else None, "device", _CPU)
            on, of = torch.device(on).type, kwargs["generator"].device.type
            if (on in _NAMES) != (of in _NAMES):
                raise RuntimeError(f"Expected a '{on}' device type for generator but found '{of}'")
        if func is Tensor.cuda:
            func, args = Tensor.to, (args[0], _INSIDE)
        if func is Tensor.__setitem__ and isinstance(args[0], CudaTensor):
            row, value = args[1:]  # CUDA first makes a CPU tensor of a number
            if isinstance(value, bool | int | float):
                args = (args[0], row, torch.scalar_tensor(value, dtype=args[0].dtype))
        kwargs = {key: _translated(value) for key, value in kwargs.items()}
        return func(*map(_translated, args), **kwargs)


def _translated(value: object) -> object:
    name = value.type if isinstance(value, torch.device) else value
    return _INSIDE if isinstance(name, str) and name.split(":")[0] == "cuda" else value


@contextmanager
def _modes() -> Iterator[None]:
    """Modes, which are set per thread."""
    lifting = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(..., device=) is seen
    try:
        with _Operations(), _Calls():
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(lifting)


@contextmanager
def simulated_cuda(package: str = "botorch_delay") -> Iterator[Record]:
    """A simulated CUDA device; places of waits are lines of ``package``."""
    global _record
    before, run = _record, threading.Thread.run

    def run_inside(thread: threading.Thread) -> None:
        with _modes():
            run(thread)

    with ExitStack() as stack:
        for name, function in _RUNTIME.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, function))
        stack.enter_context(mock.patch.object(torch, "Generator", CudaGenerator))
        stack.enter_context(mock.patch.object(threading.Thread, "run", run_inside))
        stack.enter_context(_modes())
        _record = Record(package)
        try:
            yield _record
        finally:
            _record = before
