"""A user's own torch.nn.Module as a network: made for a seat, checked, exported once to ONNX, and learned in torch.

Its spec (`NetworkSpec.module`) is data: actors, gateway and clients run its ONNX graph with the newest weights, and
need neither torch nor the user's code. A process that learns has the code too, in `user_code.MODULES`.
"""

import copy
import io
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from sparring.errors import ConfigError, SparringError
from sparring.nets import shapes
from sparring.nets.delta_conv import MIN_IMAGES, LazyConvolutions
from sparring.nets.model_files import MODULE_TOLERANCE, disagreement, random_rows
from sparring.nets.onnx_graph import NET, NET_OUT, OPSET, ModuleForward
from sparring.nets.shapes import STATE
from sparring.nets.torch_network import Heads, Leaves, Network, TorchForward, scaled
from sparring.nets.torch_state import tensor, tensors
from sparring.nets.user_code import MODULES, network_error
from sparring.wire.chunk import Array
from sparring.wire.network import Carried, Head, Input, ModuleGraph, NetworkSpec

TRIED_ROWS = (5, 1, 16)  # batch sizes on which a module is tried; the first one is traced
_MANY_ROWS, _MANY_NUMBERS = 300, 1 << 21  # of one more trial, as in a minibatch: the first unless that is more numbers
_NOT_YET = ModuleGraph((), b"")
_MODULE = "module."  # before the names of the user's tensors in the state_dict of a ModuleNetwork

Maker = Callable[[], nn.Module]


class ModuleNetwork(Network):
    """The user's module behind the interface of `Network`. It is in training mode where gradients are taken."""

    def __init__(self, spec: NetworkSpec, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.spec, self.module = spec, module
        # Threads may share rows only where these do not meet in running statistics or in one random generator.
        drops = any(isinstance(part, nn.modules.dropout._DropoutNd) for part in module.modules())
        self._rows_apart = not drops and next(module.buffers(), None) is None
        self._channels_last = False
        self._skips = False  # its first convolutions may skip windows: see `skip_windows`

    @property
    def moving(self) -> list[str]:
        """Buffers that a pass in training mode changes, such as running statistics."""
        tried = copy.deepcopy(self)
        tried._forward(_zeros(self.spec))
        before = dict(self.module.named_buffers())
        return [name for name, value in tried.module.named_buffers() if not torch.equal(value, before[name])]

    def arrange(self) -> None:
        """Convolutions take two thirds of the time with channels last in memory. A module that cannot, because it calls
        view() on what they give, keeps the usual order."""
        self.module.to(memory_format=torch.channels_last)
        self._channels_last = True
        try:
            with torch.no_grad():
                self._forward(_zeros(self.spec))
        except RuntimeError:
            self.module.to(memory_format=torch.contiguous_format)
            self._channels_last = False

    def skip_windows(self) -> None:
        """Let the first convolutions skip unchanged windows (nets/delta_conv.py) from now on, if a trial gives the same
        outputs and gradients with and without."""
        rng, tried = np.random.default_rng(0), []
        rows = {leaf.name: tensor(random_rows(leaf, 1, rng).repeat(2 * MIN_IMAGES, 0)) for leaf in self.spec.inputs}
        for leaf in rows.values():
            leaf[0].flatten()[:4] = 0  # one image differs
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            for skips in (False, True):
                net = copy.deepcopy(self)
                net._skips = skips
                torch.manual_seed(0)
                try:
                    out = net._forward(rows)
                    total = torch.stack([head.square().sum() for head in out.values()]).sum()
                    learned = [value for value in net.module.parameters() if value.requires_grad]
                    gradients = torch.autograd.grad(total, learned, materialize_grads=True)
                except RuntimeError:
                    return
                tried.append([*(head.detach() for head in out.values()), *gradients])
        self._skips = all(
            torch.allclose(mine, theirs, rtol=1e-2, atol=1e-3 * float(theirs.abs().max()) + 1e-7)
            for theirs, mine in zip(*tried, strict=True)
        )

    def arranged(self, observation: Leaves) -> dict[str, Tensor]:
        return super().arranged(observation) if self._channels_last else dict(observation)

    def unroll(self, observation: Leaves, state: Tensor | None = None, starts: Tensor | None = None) -> Heads:
        time, n = next(iter(observation.values())).shape[:2]
        if self.spec.memory is None:
            flat = self._forward({name: leaf.flatten(0, 1) for name, leaf in observation.items()})
            return {name: y.reshape(time, n, *y.shape[1:]) for name, y in flat.items()}
        state = self.initial_state(n) if state is None else state
        steps: list[Heads] = []
        for t in range(time):
            if starts is not None:
                state = state * (~starts[t].bool()).float().unsqueeze(1)
            steps.append(self._forward({name: leaf[t] for name, leaf in observation.items()}, state))
            state = steps[-1].pop(STATE)
        return {name: torch.stack([step[name] for step in steps]) for name in steps[0]} | {STATE: state}

    def weights(self) -> dict[str, Array]:
        """A copy of every parameter and float buffer, by the names of the module's own state_dict."""
        return {name: np.array(value.numpy(), order="C") for name, value in self._tensors()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        shapes.fit(self.spec, weights)
        with torch.no_grad():
            for name, value in self._tensors():
                value.copy_(tensor(weights[name]))

    def _tensors(self) -> list[tuple[str, Tensor]]:
        assert self.spec.module is not None
        state = self.module.state_dict()
        return [(name, state[name]) for name, _ in self.spec.module.tensors]

    @property
    def _split(self) -> bool:
        return self._rows_apart and any(leaf.image for leaf in self.spec.inputs)

    def _forward(self, observation: Leaves, state: Tensor | None = None) -> Heads:
        learns = torch.is_grad_enabled()
        if self.module.training != learns:
            self.module.train(learns)
        if self.spec.memory is not None and state is None:
            state = self.initial_state(len(next(iter(observation.values()))))
        images = shapes.images(self.spec)
        raw = observation[images[0].name] if learns and self._skips and len(images) == 1 else None
        if raw is None or raw.dtype != torch.uint8 or raw.dim() != 4 or not raw.is_cpu:
            return self.heads({leaf.name: self._seen(leaf, observation) for leaf in self.spec.inputs}, state)
        lazy = LazyConvolutions(images[0], raw, lambda: self._seen(images[0], observation))
        others = {leaf.name: self._seen(leaf, observation) for leaf in self.spec.inputs if leaf != images[0]}
        with lazy:
            return self.heads({leaf.name: others.get(leaf.name, lazy.given) for leaf in self.spec.inputs}, state)

    def _seen(self, leaf: Input, observation: Leaves) -> Tensor:
        x = scaled(leaf, observation[leaf.name])
        return super().arranged({leaf.name: x})[leaf.name] if self._channels_last else x

    def heads(self, seen: Leaves, state: Tensor | None) -> Heads:
        """What the module makes of scaled leaves, as a `Network` gives it."""
        made, after = self.call(seen, state)
        out = {head.name: made[head.name].reshape(_shape(head, -1)) for head in self.spec.heads}
        return out if after is None else out | {STATE: after}

    def call(self, seen: Leaves, state: Tensor | None) -> tuple[Mapping[str, Tensor], Tensor | None]:
        """The module's own outputs by head, and its next state."""
        given = {short(name): leaf for name, leaf in seen.items()}
        observation = given if len(given) > 1 else next(iter(given.values()))
        made, after = self.module(observation) if state is None else self.module(observation, state), None
        if state is not None and isinstance(made, tuple | list) and len(made) == 2:
            made, after = made
        if isinstance(made, Mapping):
            return made, after
        return dict(zip((head.name for head in self.spec.heads), _sequence(made), strict=False)), after


def open_network(spec: NetworkSpec, seed: int | torch.Generator) -> Network:
    """The network of that spec, to learn with. Equal seeds give equal parameters."""
    if spec.module is None:
        return Network(spec, seed)
    if (maker := MODULES.get(spec.module)) is None:
        do = "Learn where the network's code is; its graph alone can only act"
        raise ConfigError("the code of its module is not known in this process", where="network", do=do)
    return _made(spec, maker, seed if isinstance(seed, int) else seed.initial_seed())


def torch_forward(spec: NetworkSpec, weights: Mapping[str, Array]) -> TorchForward:
    """The user's module itself with these weights, to compare others with."""
    net = open_network(spec, 0)
    net.set_weights(weights)
    return TorchForward(net)


def module_network(name: str, maker: Maker, inputs: tuple[Input, ...], heads: tuple[Head, ...]) -> NetworkSpec:
    """The spec of the module that `maker` makes, which is from now on known in this process (`open_network`).

    ConfigError unless it gives the heads for any batch size, in ONNX Runtime as in torch.
    """
    plain = tuple(replace(head, dueling=False) for head in heads)
    inputs = tuple(replace(leaf, normalise=False) for leaf in inputs)  # what it sees is the module's own affair
    net = _made(NetworkSpec(inputs, plain, module=_NOT_YET), maker, 0)
    size = getattr(net.module, "state_size", 0)
    if type(size) is not int or size < 0:
        raise network_error(name, f"its state_size is {size!r}", "Set the width of its state, a whole number")
    net.spec = spec = replace(net.spec, memory=Carried(size) if size else None)
    rng, tried = np.random.default_rng(0), _tried_rows(inputs)
    for rows in tried:
        _check_outputs(name, net, {leaf.name: random_rows(leaf, rows, rng) for leaf in inputs}, rows)
    others = [(key, value) for key, value in net.module.named_parameters() if value.dtype != torch.float32]
    if others or next(net.module.parameters(), None) is None:
        wrong = f"its parameter {others[0][0]!r} is {others[0][1].dtype}" if others else "it has no parameters"
        raise network_error(name, wrong, "Give it float32 parameters")
    with torch.no_grad():  # exporters join equal tensors, and a swap of zeros would not be seen
        draw = torch.Generator().manual_seed(0)
        for value in float_tensors(net.module).values():
            value += 0.05 * torch.rand(value.shape, generator=draw)
    tensors_of = tuple((key, tuple(value.shape)) for key, value in float_tensors(net.module).items())
    graph = ModuleGraph(tensors_of, _exported(name, net.eval()))
    net.spec = spec = replace(spec, module=graph)
    try:
        ours, theirs = TorchForward(net), ModuleForward(spec, net.weights())
        worst = max(disagreement(spec, ours, theirs, rows) for rows in tried)
    except SparringError:
        raise
    except Exception as error:
        raise network_error(name, f"ONNX Runtime does not run its graph: {_line(error)}", _TRACEABLE) from error
    if not worst <= MODULE_TOLERANCE:
        wrong = f"its ONNX graph gives other numbers than the module itself: they differ by {worst:.2g}"
        raise network_error(name, wrong, _TRACEABLE)
    _check_gradients(name, net)
    MODULES[graph] = maker
    return spec


_TRACEABLE = (
    "Write forward() with tensor operations alone: no Python branch on values, no random numbers, no fixed batch size"
)


def short(leaf: str) -> str:
    """A leaf's name as a module sees it."""
    return leaf.removeprefix("observation/")


def float_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and finite float32 buffers, not copied: what weights are. A mask of infinities is a constant."""
    state, fixed = module.state_dict(), {name for name, value in module.named_buffers() if not value.isfinite().all()}
    return {name: value for name, value in state.items() if value.dtype == torch.float32 and name not in fixed}


def _made(spec: NetworkSpec, maker: Maker, seed: int) -> ModuleNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ModuleNetwork(spec, maker())
        if any(is_lazy(value) for value in net.module.parameters()):
            size, rows = getattr(net.module, "state_size", 0), _zeros(spec)
            seen = {leaf.name: scaled(leaf, rows[leaf.name]) for leaf in spec.inputs}
            with torch.no_grad():
                net.eval().call(seen, torch.zeros(2, size) if size else None)
    if any(leaf.image and len(leaf.shape) == 3 for leaf in spec.inputs):
        stateless = not getattr(net.module, "state_size", 0)
        if stateless:
            net.arrange()
        if stateless or spec.memory is not None:
            net.skip_windows()
    return net


def _zeros(spec: NetworkSpec) -> dict[str, Tensor]:
    return {leaf.name: tensor(np.zeros((2, *leaf.shape), leaf.dtype)) for leaf in spec.inputs}


def _tried_rows(inputs: tuple[Input, ...]) -> tuple[int, ...]:
    numbers = sum(math.prod(leaf.shape) * (leaf.one_hot or 1) for leaf in inputs)
    return (*TRIED_ROWS, min(_MANY_ROWS, max(TRIED_ROWS[-1] + 1, _MANY_NUMBERS // max(numbers, 1))))


class _Branches(TorchFunctionMode):
    """Finds where code outside torch takes a tensor as a Python boolean. A trace knows the side that it took alone.

    The tracer's own warning of it also comes for comparisons of shapes, which do no harm.
    """

    _TORCH = str(Path(torch.__file__).parent)
    place = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__bool__:
            caller = sys._getframe(1)
            if not caller.f_code.co_filename.startswith(self._TORCH):
                self.place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        return func(*args, **(kwargs or {}))


def _check_gradients(name: str, net: ModuleNetwork) -> None:
    """Nothing, or ConfigError where a head cannot learn. A deviation may be fixed."""
    rng = np.random.default_rng(0)
    rows = tensors({leaf.name: random_rows(leaf, TRIED_ROWS[0], rng) for leaf in net.spec.inputs})
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            made = net._forward(rows)
    except Exception:  # noqa: BLE001
        return  # what it raises while it learns is told by the run, with its line
    for head in net.spec.heads:
        if head.name != "log_std" and not made[head.name].requires_grad:
            do = "Make it from the module's parameters without detach(), no_grad() or numpy()"
            raise network_error(name, f"its {head.name!r} has no gradient, so it cannot learn", do)


def _check_outputs(name: str, net: ModuleNetwork, rows: dict[str, Array], n: int) -> None:
    """Nothing, or ConfigError where the module's outputs for these rows are not what the spec says."""
    width = shapes.state_width(net.spec)
    seen = {leaf.name: scaled(leaf, tensors(rows)[leaf.name]) for leaf in net.spec.inputs}
    gives = ", ".join(f"{head.name} [n, {head.units}]" for head in net.spec.heads)
    with torch.no_grad(), _Branches() as branches:
        net.module.eval()
        made, after = net.call(seen, torch.zeros(n, width) if width else None)
    if branches.place:
        wrong = f"forward() takes a tensor as a Python boolean in {branches.place}"
        raise network_error(name, wrong, _TRACEABLE)
    if width and (not isinstance(after, Tensor) or tuple(after.shape) != (n, width)):
        wrong = f"its next state is {list(after.shape) if isinstance(after, Tensor) else type(after).__name__}"
        raise network_error(name, wrong, f"Let forward(observation, state) return (outputs, state [n, {width}])")
    for head in net.spec.heads:
        value, do = made.get(head.name), f"Let forward() return {gives}"
        if not isinstance(value, Tensor):
            raise network_error(name, f"forward() gives no {head.name!r}", do)
        if tuple(value.shape) not in ((n, head.units), _shape(head, n)) and (head.units > 1 or value.shape != (n,)):
            wrong = f"forward() gives {head.name!r} of shape {list(value.shape)} for a batch of {n}"
            raise network_error(name, wrong, do)
        if not torch.isfinite(value).all():
            raise network_error(name, f"forward() gives NaN or infinity as {head.name!r}", "Correct the module")
        if value.dtype != torch.float32:
            raise network_error(name, f"forward() gives {head.name!r} as {value.dtype}", "Let it give float32")


class _Traced(nn.Module):
    """The module as a function of scaled leaves, and of a state, in the order of the spec."""

    def __init__(self, net: ModuleNetwork) -> None:
        super().__init__()
        self.module, self._net = net.module, (net,)  # in a tuple, so that its tensors are not found twice

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        (net,) = self._net
        names = [leaf.name for leaf in net.spec.inputs]
        out = net.heads(dict(zip(names, given, strict=False)), given[len(names)] if net.spec.memory else None)
        heads = [out[head.name].reshape(-1, head.units) for head in net.spec.heads]
        return (*heads, out[STATE]) if net.spec.memory else tuple(heads)


def _exported(name: str, net: ModuleNetwork) -> bytes:
    """The module's graph without its tensors, as ModuleGraph says."""
    rng, spec, n = np.random.default_rng(1), net.spec, TRIED_ROWS[0]
    given = [scaled(leaf, tensor(random_rows(leaf, n, rng))) for leaf in spec.inputs]
    names = [leaf.name for leaf in spec.inputs]
    outs = [NET_OUT.removeprefix(NET) + head.name for head in spec.heads]
    if spec.memory is not None:
        given.append(torch.zeros(n, spec.memory.units))
        names.append(STATE)
        outs.append(NET_OUT.removeprefix(NET) + STATE)
    try:
        whole = _proto(_Traced(net), tuple(given), names, outs)
    except Exception as error:
        raise network_error(name, f"torch cannot export it to ONNX: {_line(error)}", _TRACEABLE) from error
    weights = {f"{_MODULE}{key}": NET + key for key in float_tensors(net.module)}
    kept = [one for one in whole.graph.initializer if one.name not in weights]
    del whole.graph.initializer[:], whole.graph.value_info[:], whole.metadata_props[:]
    whole.graph.initializer.extend(kept)
    for node in whole.graph.node:
        node.input[:] = [weights.get(one, one) for one in node.input]
        node.doc_string = ""
        del node.metadata_props[:]
    content: bytes = onnx.compose.add_prefix(whole, NET).SerializeToString(deterministic=True)
    return content


def _proto(module: nn.Module, given: tuple[Tensor, ...], names: list[str], outs: list[str]) -> Any:
    """By torch's tracing exporter, which takes half a second and writes the opset that engines have; by its newer one,
    which knows more operations and takes several seconds, where that fails."""
    axes = {one: {0: "batch"} for one in (*names, *outs)}
    shared: dict[str, Any] = {"input_names": names, "output_names": outs}
    old: dict[str, Any] = {"dynamo": False, "opset_version": OPSET, "do_constant_folding": False, "dynamic_axes": axes}
    free = {"given": tuple({0: torch.export.Dim.DYNAMIC} for _ in given)}
    new: dict[str, Any] = {"dynamo": True, "optimize": False, "dynamic_shapes": free, "verbose": False}
    with warnings.catch_warnings(), _silence(), torch.no_grad():
        warnings.simplefilter("ignore")  # exporters say a lot, and raise it too
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # one fused operation, which ONNX has not
        try:
            file = io.BytesIO()
            torch.onnx.export(module, given, **shared, **old, f=file)  # type: ignore[arg-type]
            return onnx.load_model_from_string(file.getvalue())
        except Exception as first:  # noqa: BLE001  (exporters raise anything)
            try:
                made: Any = torch.onnx.export(module, given, **shared, **new)
            except Exception:  # noqa: BLE001
                raise first from None  # the plainer reason of the two
            return made.model_proto
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing is printed in this block, by Python or by C++: the tracing exporter prints a graph that it cannot export
    to the file descriptor itself."""
    with ExitStack() as after:
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            if stream is not None:
                stream.flush()
            try:
                kept = os.dup(number)
            except OSError:  # closed, as a service's may be
                continue
            after.callback(os.close, kept)
            after.callback(os.dup2, kept, number)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), number)
        after.enter_context(redirect_stdout(io.StringIO()))
        after.enter_context(redirect_stderr(io.StringIO()))
        yield


def _sequence(made: Any) -> tuple[Any, ...]:
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def _shape(head: Head, n: int) -> tuple[int, ...]:
    return (n,) if head.name == "value" and head.units == 1 else (n, head.units)


def _line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip().rstrip('.')}" if lines else type(error).__name__
