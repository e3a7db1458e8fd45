"""``to_lowbit``: any torch model of convolutions, linear layers, batch norm and ReLU becomes a low-bit one.

The model is traced with torch.fx. Layers are replaced in place of the originals (same names); batch norm, residual add and
ReLU that follow each other are fused; operators without weights (pooling, flatten, ...) run on float views.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedqssl.lowbit.fp32_layers import ClippedReLU, to_full
from fedqssl.lowbit.layers import InputCodes, LowBitConv2d, LowBitLinear, LowBitNorm, RangeCodes, TanhCodes
from fedqssl.lowbit.precision import LowBitOptions, Precision
from fedqssl.lowbit.skip import skipped_modules

_WEIGHTS = (nn.Conv2d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_RELU_FUNCTIONS = (torch.relu, torch.relu_, F.relu, F.relu_)
_PICKING_FUNCTIONS = (torch.flatten, torch.reshape, F.max_pool2d, F.adaptive_max_pool2d, torch.max_pool2d)
_ADD_FUNCTIONS = (operator.add, operator.iadd, torch.add)
SHOWN = 4
"""Layers that an error names."""


class ConversionError(ValueError):
    """The model contains something that cannot be converted; the message names it."""


class _Tracer(fx.Tracer):
    """Does not trace into torch's own layers and skipped modules."""

    def __init__(self, skip: frozenset[str]) -> None:
        super().__init__()
        self.skip = skip

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.skip or getattr(m, "is_traced_whole", False):
            return True
        return super().is_leaf_module(m, module_qualified_name)


def copy_of(model: fx.GraphModule) -> fx.GraphModule:
    """A copy of what :func:`to_lowbit` returned, with tensors of its own and the same graph, which nobody may change.

    ``copy.deepcopy`` copies the graph, too, and compiles it again, which takes ten times as long for a small network.
    """
    own = type("GraphModuleImpl", (type(model),), {})  # as torch does it: with room for a forward of its own
    found: fx.GraphModule = object.__new__(own)
    _fill(found, model, {id(model.graph): model.graph})
    return found


def _fill(found: nn.Module, module: nn.Module, memo: dict[int, object]) -> None:
    """Make the first module a copy of the second; ``memo`` as for ``copy.deepcopy``. Hooks are mostly empty dictionaries."""
    memo[id(module)] = found
    for name, value in module.__dict__.items():
        if name in ("_parameters", "_buffers"):
            found.__dict__[name] = {key: _copy_of_tensor(x, memo) for key, x in value.items()}
        elif name != "_modules":
            empty = isinstance(value, dict) and not value
            found.__dict__[name] = type(value)() if empty else copy.deepcopy(value, memo)
    modules: dict[str, nn.Module | None] = {}
    found.__dict__["_modules"] = modules
    for name, child in module._modules.items():
        if child is None or id(child) in memo or hasattr(child, "__deepcopy__"):
            modules[name] = copy.deepcopy(child, memo)
            continue
        modules[name] = own = object.__new__(type(child))
        _fill(own, child, memo)


def _copy_of_tensor(x: Tensor | None, memo: dict[int, object]) -> Tensor | None:
    """A copy of a parameter or a buffer, the same one for the same tensor."""
    if type(x) in (Tensor, nn.Parameter) and id(x) not in memo:
        assert x is not None
        own = x.detach().clone()
        memo[id(x)] = nn.Parameter(own, x.requires_grad) if isinstance(x, nn.Parameter) else own
    return copy.deepcopy(x, memo)


def to_lowbit(
    model: nn.Module,
    precision: Precision,
    options: LowBitOptions | None = None,
    skip: Iterable[str] = (),
) -> fx.GraphModule:
    """A low-bit copy of ``model``; the original is not changed.

    Args:
        model: any traceable model of Conv2d, Linear, batch norm, ReLU, pooling and residual adds.
        precision: bits of weights, activations and gradients; with ``Precision.for_bits(32)`` the result computes the same
            function without rounding.
        options: interpretations of the paper; the defaults are recommended.
        skip: names or patterns of modules to leave in floats, with everything inside them; added to those of ``options``.

    Raises:
        ConversionError: names every layer that cannot be converted, and why.
    """
    options = options or LowBitOptions()
    options = replace(options, skip=tuple(dict.fromkeys((*options.skip, *skip))))
    try:
        skipped = skipped_modules(model, options.skip)
    except ValueError as error:
        raise ConversionError(str(error)) from None
    model = copy.deepcopy(model).float()
    if isinstance(model, (*_WEIGHTS, *_NORMS)):
        model = nn.Sequential(model)  # a bare layer: tracing would look inside it
    try:
        graph = _Tracer(skipped).trace(model)
    except Exception as error:
        raise ConversionError(
            f"the model's forward cannot be traced ({error}); remove data-dependent control flow, "
            "or convert its parts one by one"
        ) from error
    traced = fx.GraphModule(model, graph)
    _check(traced, skipped)
    builder = _Builder(traced, precision, options, skipped)
    builder.convert()
    parameter = next(traced.parameters(), None)
    if parameter is not None and parameter.device.type == "cuda":
        traced.to(parameter.device)  # what is new in it was made on the CPU
    traced.meta["fedqssl"] = (precision, builder.options)  # for the container; deep copies keep it
    return traced


def _module(node: fx.Node, traced: fx.GraphModule) -> nn.Module | None:
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


def _check(traced: fx.GraphModule, skip: frozenset[str]) -> None:
    """Name every module with parameters, and every parameter used directly, that has no low-bit counterpart."""
    problems = []
    for node in traced.graph.nodes:
        module = _module(node, traced)
        if module is not None and str(node.target) not in skip:
            if isinstance(module, nn.Conv2d) and module.padding_mode != "zeros":
                problems.append(f"{node.target} (Conv2d with padding_mode={module.padding_mode!r})")
            elif isinstance(module, nn.Conv2d) and module.padding == "same" and not _odd_kernel(module):
                problems.append(f"{node.target} (Conv2d with padding='same' and an even kernel)")
            elif not isinstance(module, (*_WEIGHTS, *_NORMS)) and any(True for _ in module.parameters()):
                problems.append(f"{node.target} ({type(module).__name__})")
        elif node.op == "get_attr" and node.target in dict(traced.named_parameters()):
            problems.append(f"{node.target} (a parameter used directly)")
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        names, modules = [problem.split()[0] for problem in problems], dict(traced.named_modules())
        first = next((name for name in names if name in modules), "NAME")  # a parameter alone cannot be skipped
        rest = "" if names == [first] else ",..."
        raise ConversionError(
            f"no low-bit counterpart of {', '.join(problems[:SHOWN])}{more}; leave them in floats with "
            f"lowbit.skip={first}{rest} (of to_lowbit: skip=[...])"
        )


def _odd_kernel(conv: nn.Conv2d) -> bool:
    return all(d * (k - 1) % 2 == 0 for d, k in zip(conv.dilation, conv.kernel_size, strict=True))


class _Builder:
    """Rewrites a traced graph. Nodes in ``codes`` produce an Activation, all others produce tensors."""

    def __init__(
        self, traced: fx.GraphModule, precision: Precision, options: LowBitOptions, skip: frozenset[str]
    ) -> None:
        self.traced, self.graph = traced, traced.graph
        self.precision, self.options, self.skip = precision, options, skip
        self.codes: set[fx.Node] = set()
        self.fresh = 0

    def convert(self) -> None:
        for node in list(self.graph.nodes):
            if self._is_a(node, (nn.Identity,)):
                node.replace_all_uses_with(node.args[0])
                self.graph.erase_node(node)
        for node in list(self.graph.nodes):
            self._replace_weights(node)
        for node in list(self.graph.nodes):
            if self._is_relu(node):
                self._replace_relu(node)
        for node in list(self.graph.nodes):
            if self._is_a(node, _NORMS) and not self.precision.full:
                self._replace_norm(node, activate=False)
        if not self.precision.full:
            self._connect()
        self.traced.delete_all_unused_submodules()
        self.graph.lint()
        self.traced.recompile()

    def _is_a(self, node: fx.Node, kinds: tuple[type[nn.Module], ...]) -> bool:
        return isinstance(_module(node, self.traced), kinds) and str(node.target) not in self.skip

    def _is_relu(self, node: fx.Node) -> bool:
        if node.op == "call_method":
            return node.target in ("relu", "relu_")
        if node.op == "call_function":
            return node.target in _RELU_FUNCTIONS
        return self._is_a(node, (nn.ReLU,))

    def _is_add(self, node: fx.Node) -> bool:
        adds = node.op == "call_function" and node.target in _ADD_FUNCTIONS
        adds = adds or (node.op == "call_method" and node.target in ("add", "add_"))
        return adds and len(node.args) == 2 and all(isinstance(a, fx.Node) for a in node.args) and not node.kwargs

    def _is_join(self, node: fx.Node) -> bool:
        """A residual sum that only the ReLU behind it reads."""
        return self._is_add(node) and len(node.users) == 1

    def _set(self, name: str, module: nn.Module) -> None:
        module.train(self.traced.training)
        self.traced.add_submodule(name, module)

    def _feeds_norm(self, node: fx.Node) -> bool:
        users = list(node.users)
        return len(users) == 1 and self._is_a(users[0], _NORMS)

    def _replace_weights(self, node: fx.Node) -> None:
        layer = _module(node, self.traced)
        if not isinstance(layer, _WEIGHTS) or str(node.target) in self.skip:
            return  # skipped, or a module that an earlier call has already replaced
        calls = [n for n in self.graph.nodes if n.op == "call_module" and n.target == node.target]
        absorbed = all(self._feeds_norm(call) for call in calls)
        if self.precision.full:
            self._set(str(node.target), to_full(layer, self.options, absorbed))
            return
        own = not absorbed or self.options.gradient_rounding == "stochastic"
        kind = LowBitConv2d if isinstance(layer, nn.Conv2d) else LowBitLinear
        made = kind(layer, self.precision, self.options, absorbed, own)  # type: ignore[arg-type]
        made.seed_gradient_rounding(0, str(node.target))
        self._set(str(node.target), made)

    def _replace_norm(self, node: fx.Node, activate: bool) -> None:
        norm = _module(node, self.traced)
        assert isinstance(norm, _NORMS)
        layer = _module(node.args[0], self.traced) if isinstance(node.args[0], fx.Node) else None
        quantizes = isinstance(layer, (LowBitConv2d, LowBitLinear)) and not layer.quantizes_gradient
        self._set(str(node.target), LowBitNorm(norm, self.precision, self.options, activate, quantizes))

    def _replace_relu(self, relu: fx.Node) -> None:
        """Fuse ``relu``, ``relu(bn(.))`` and ``relu(bn(.) + other)`` into one module."""
        source = relu.args[0]
        assert isinstance(source, fx.Node)
        if self.precision.full:
            self._call_new(relu, ClippedReLU(self.options), (source,), "relu")
            return
        residual: fx.Node | None = None
        add = None
        if self._is_join(source) and source.args[0] is not source.args[1]:
            add = source
            left, right = source.args
            assert isinstance(left, fx.Node) and isinstance(right, fx.Node)
            if not self._fusible(left) and self._fusible(right):
                left, right = right, left
            source, residual = left, right
        arguments = (source,) if residual is None else (source, residual)
        if self.options.activation_quantizer == "tanh":
            made = self._call_new(relu, TanhCodes(self.precision), arguments, "activation")
        elif self._fusible(source):
            self._replace_norm(source, activate=True)
            made = self._move(source, relu, (source.args[0], *arguments[1:]))
        else:
            bare = LowBitNorm(None, self.precision, self.options, True, False)
            made = self._call_new(relu, bare, arguments, "activation")
        if add is not None and not add.users:
            self.graph.erase_node(add)
        if made is not source and not source.users:
            self.graph.erase_node(source)
        self.codes.add(made)

    def _fusible(self, node: fx.Node) -> bool:
        """A batch norm whose only user is this one, called once."""
        calls = [n for n in self.graph.nodes if n.op == "call_module" and n.target == node.target]
        return self._is_a(node, _NORMS) and len(node.users) == 1 and len(calls) == 1

    def _move(self, node: fx.Node, at: fx.Node, arguments: tuple[object, ...]) -> fx.Node:
        """Call ``node``'s module at the place of ``at`` instead, where all its arguments exist."""
        with self.graph.inserting_after(at):
            made = self.graph.call_module(str(node.target), arguments)  # type: ignore[arg-type]
        at.replace_all_uses_with(made)
        self.graph.erase_node(at)
        return made

    def _call_new(self, at: fx.Node, module: nn.Module, arguments: tuple[fx.Node, ...], kind: str) -> fx.Node:
        """Replace the node ``at`` by a call of a new module."""
        name = f"lowbit_{kind}_{self.fresh}"
        self.fresh += 1
        self._set(name, module)
        with self.graph.inserting_after(at):
            made = self.graph.call_module(name, arguments)
        at.replace_all_uses_with(made)
        self.graph.erase_node(at)
        return made

    def _connect(self) -> None:
        """Give every layer what it reads: codes to low-bit layers, tensors to everything else."""
        for node in list(self.graph.nodes):
            module = _module(node, self.traced)
            for i, source in enumerate(node.all_input_nodes):
                if isinstance(module, (LowBitConv2d, LowBitLinear)):
                    if source not in self.codes:
                        self._encode(source, node)
                elif source in self.codes:
                    takes_codes = isinstance(module, (LowBitNorm, TanhCodes)) and i == 1
                    if not takes_codes:
                        self._decode(source, node)

    def _encode(self, source: fx.Node, node: fx.Node) -> None:
        is_input = source.op == "placeholder" and self.options.quantize_input
        module: nn.Module
        if is_input:
            module = InputCodes()
        else:
            module = RangeCodes(self.precision, top=self._top(source))
        name = f"lowbit_codes_{self.fresh}"
        self.fresh += 1
        self._set(name, module)
        with self.graph.inserting_before(node):
            made = self.graph.call_module(name, (source,))
        self.codes.add(made)
        later = [u for u in source.users if u is not made]
        for user in later:  # other low-bit layers that read the same tensor share the codes
            if isinstance(_module(user, self.traced), (LowBitConv2d, LowBitLinear)):
                user.replace_input_with(source, made)

    def _top(self, node: fx.Node) -> float | None:
        """The activation's largest value, if ``node`` only picks or reshapes an activation's entries."""
        while node not in self.codes:
            picks = node.op == "call_method" and node.target in (
                "flatten",
                "view",
                "reshape",
                "contiguous",
                "to_tensor",
            )
            picks = picks or (node.op == "call_function" and node.target in _PICKING_FUNCTIONS)
            picks = picks or self._is_a(node, (nn.MaxPool2d, nn.AdaptiveMaxPool2d, nn.Flatten))
            if not picks or not node.all_input_nodes:
                return None
            node = node.all_input_nodes[0]
        module = _module(node, self.traced)
        if isinstance(module, LowBitNorm):
            return module.clip
        return 1.0 if isinstance(module, TanhCodes) else None

    def _decode(self, source: fx.Node, node: fx.Node) -> None:
        with self.graph.inserting_before(node):
            made = self.graph.call_method("to_tensor", (source,))
        node.replace_input_with(source, made)
