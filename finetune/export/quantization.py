"""Store the weights of an ONNX model in 8 bits, with answers that do not depend on other rows.

A linear layer ``x @ w`` becomes ``(q(x) @ q(w)) * s(x) * s(w)``: integers of 8 bits and scales.
Each output of ``w`` has a scale, and each token of ``x`` has its own, computed from this token
alone. One scale for the whole batch, as in the dynamic quantization of ONNX Runtime, makes the
answer to a text depend on the other texts. An embedding has a scale for each token of the
vocabulary. All operators are those of ONNX. See ``docs/decisions/int8.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.helper import make_node

_NARROWEST = 16  # rows or columns of a weight: narrower ones, e.g. of a head, stay in fp32
_LARGEST = 63  # of a weight: with 127, sums overflow on processors without VNNI
_ZERO = 128  # activations are unsigned, which is the fastest


def quantize_weights(path: Path) -> None:
    """Replace an ONNX model by one with weights in 8 bits."""
    model = onnx.load(path)
    del model.graph.value_info[:]  # recorded shapes may be wrong (onnxscript 0.6)
    graph = _Graph(model.graph)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes.extend(graph.quantized(node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    names = {name for node in nodes for name in node.input}
    weights = [weight for weight in model.graph.initializer if weight.name in names]
    weights.extend(graph.added.values())
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)
    onnx.save(model, path)


class _Graph:
    """The weights of a graph, and those that quantized nodes use."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._weights = {weight.name: weight for weight in graph.initializer}
        self._activations_done: set[str] = set()
        self.added: dict[str, onnx.TensorProto] = {}

    def quantized(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that replace a node: itself, if it has no large weight."""
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type == "Gather" and attributes.get("axis", 0) == 0:
            weight = self._weight(node.input[0])
            if weight is not None:
                yield from self._embedding(node, weight)
                return
        factors = {attributes.get(name, 1) for name in ("alpha", "beta")}
        is_linear = node.op_type in ("MatMul", "Gemm") and not attributes.get("transA")
        if is_linear and factors == {1}:
            weight = self._weight(node.input[1])
            if weight is not None:
                is_transposed = bool(attributes.get("transB"))
                yield from self._linear(node, weight.T if is_transposed else weight, is_transposed)
                return
        yield node

    def _embedding(self, node: onnx.NodeProto, weight: np.ndarray) -> Iterator[onnx.NodeProto]:
        table, ids = node.input
        (output,) = node.output
        values, scales = _integers(weight, axis=1, largest=127)
        values_name = self._constant(f"{table}.rows", values)
        scales_name = self._constant(f"{table}.scales", scales)
        yield make_node("Gather", [values_name, ids], [f"{output}.int8"])
        yield make_node("Gather", [scales_name, ids], [f"{output}.scale"])
        yield make_node("Cast", [f"{output}.int8"], [f"{output}.fp32"], to=onnx.TensorProto.FLOAT)
        yield make_node("Mul", [f"{output}.fp32", f"{output}.scale"], [output])

    def _linear(
        self, node: onnx.NodeProto, weight: np.ndarray, is_transposed: bool
    ) -> Iterator[onnx.NodeProto]:
        tokens, name = node.input[:2]
        if is_transposed:
            name += ".transposed"
        (output,) = node.output
        values, scales = _integers(weight, axis=0, largest=_LARGEST)
        values_name = self._constant(f"{name}.columns", values)
        scales_name = self._constant(f"{name}.column_scales", scales)
        zero = self._constant("int8.zero", np.uint8(_ZERO))
        yield from self._activations(tokens)
        quantized = [f"{tokens}.uint8", values_name, zero]
        yield make_node("MatMulInteger", quantized, [f"{output}.int32"])
        yield make_node("Cast", [f"{output}.int32"], [f"{output}.fp32"], to=onnx.TensorProto.FLOAT)
        # not one product of both scales: ONNX Runtime would take the first scale for all tokens
        yield make_node("Mul", [f"{output}.fp32", scales_name], [f"{output}.scaled"])
        if len(node.input) == 2:
            yield make_node("Mul", [f"{output}.scaled", f"{tokens}.scale"], [output])
            return
        yield make_node("Mul", [f"{output}.scaled", f"{tokens}.scale"], [f"{output}.unbiased"])
        yield make_node("Add", [f"{output}.unbiased", node.input[2]], [output])

    def _activations(self, name: str) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that quantize the vectors of all tokens, each with its own scale."""
        if name in self._activations_done:  # several layers read them
            return
        self._activations_done.add(name)
        last = self._constant("int8.last", np.array([-1]))
        least = self._constant("int8.least", np.float32(1e-30))  # a scale may not be 0
        ratio = self._constant("int8.ratio", np.float32(1 / 127))
        shift = self._constant("int8.shift", np.float32(_ZERO))
        # not QuantizeLinear: OpenVINO (2026.4) returns nothing for a computed scale of each token
        yield make_node("Abs", [name], [f"{name}.abs"])
        yield make_node("ReduceMax", [f"{name}.abs", last], [f"{name}.max"], keepdims=1)
        yield make_node("Max", [f"{name}.max", least], [f"{name}.range"])
        yield make_node("Mul", [f"{name}.range", ratio], [f"{name}.scale"])
        yield make_node("Div", [name, f"{name}.scale"], [f"{name}.scaled"])
        yield make_node("Round", [f"{name}.scaled"], [f"{name}.rounded"])
        yield make_node("Add", [f"{name}.rounded", shift], [f"{name}.shifted"])
        yield make_node("Cast", [f"{name}.shifted"], [f"{name}.uint8"], to=onnx.TensorProto.UINT8)

    def _weight(self, name: str) -> np.ndarray | None:
        """Return a weight that is a large matrix in fp32, None for anything else."""
        tensor = self._weights.get(name)
        if tensor is None or len(tensor.dims) != 2 or min(tensor.dims) < _NARROWEST:
            return None
        weight = numpy_helper.to_array(tensor)
        return weight if weight.dtype == np.float32 else None

    def _constant(self, name: str, value: np.ndarray | np.generic) -> str:
        """Add a constant, unless it is there, and return its name."""
        if name not in self.added:
            self.added[name] = numpy_helper.from_array(np.asarray(value), name)
        return name


def _integers(weight: np.ndarray, axis: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix in 8 bits, and the scales of its rows or columns."""
    scales = np.abs(weight).max(axis=axis, keepdims=True) / np.float32(largest)
    scales[scales == 0] = 1
    values = np.rint(weight / scales).astype(np.int8)
    return values, scales if axis == 1 else scales[0]
