"""Store the weights of an ONNX model in 8 bits, with answers that do not depend on other rows.

A linear layer ``x @ w`` becomes ``(q(x) @ q(w)) * s(x) * s(w)``: integers of 8 bits and scales.
Each output of ``w`` has a scale, and each token of ``x`` has its own, computed from this token
alone. One scale for the whole batch, as in the dynamic quantization of ONNX Runtime, makes the
answer to a text depend on the other texts. An embedding has a scale for each token of the
vocabulary. All operators are those of ONNX. See ``docs/decisions/int8.md``.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import inliner, numpy_helper, parser
from onnx.helper import get_attribute_value, make_node, make_opsetid

_MIN_WIDTH = 16  # rows or columns of a weight: narrower ones, e.g. of a head, stay in fp32
_MAX_INTEGER = 63  # of a weight: with 127, sums overflow on processors without VNNI
_DOMAIN = "finetune.int8"
#: Not QuantizeLinear: OpenVINO (2026.4) returns nothing for a computed scale of each token.
#: Unsigned integers, with 128 for 0, are ten times faster in ONNX Runtime than signed ones.
_TOKENS = """
Tokens (x) => (values, scales) {
    last = Constant <value = int64[1] {-1}> ()
    least = Constant <value = float {1e-30}> ()
    largest = Constant <value = float {127.0}> ()
    zero = Constant <value = float {128.0}> ()
    absolute = Abs (x)
    maximum = ReduceMax <keepdims = 1> (absolute, last)
    positive = Max (maximum, least)
    scales = Div (positive, largest)
    scaled = Div (x, scales)
    rounded = Round (scaled)
    shifted = Add (rounded, zero)
    values = Cast <to = 2> (shifted)
}
"""
#: Not one product of both scales: ONNX Runtime would take the first scale for all tokens.
_LINEAR = """
Linear (values, scales, weight, weight_scales) => (y) {
    zero = Constant <value = uint8 {128}> ()
    product = MatMulInteger (values, weight, zero)
    number = Cast <to = 1> (product)
    scaled = Mul (number, weight_scales)
    y = Mul (scaled, scales)
}
"""
_EMBEDDING = """
Embedding (table, table_scales, ids) => (y) {
    row = Gather (table, ids)
    scale = Gather (table_scales, ids)
    number = Cast <to = 1> (row)
    y = Mul (number, scale)
}
"""


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
    names = set()
    for node in nodes:
        names.update(node.input)
    weights = list(graph.added.values())
    for weight in model.graph.initializer:
        if weight.name in names:
            weights.append(weight)
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)
    (version,) = (opset.version for opset in model.opset_import if not opset.domain)
    domains = f'<domain: "{_DOMAIN}", opset_import: ["": {version}]>'
    functions = (_TOKENS, _LINEAR, _EMBEDDING)
    model.functions.extend(parser.parse_function(domains + text) for text in functions)
    model.opset_import.append(make_opsetid(_DOMAIN, 1))
    onnx.save(inliner.inline_local_functions(model), path)


class _Graph:
    """The weights of a graph, and those that quantized nodes use."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._weights = {weight.name: weight for weight in graph.initializer}
        self._tokens: set[str] = set()  # activations that are quantized already
        self.added: dict[str, onnx.TensorProto] = {}

    def quantized(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that replace a node: itself, if it has no large weight."""
        attributes = {item.name: get_attribute_value(item) for item in node.attribute}
        if node.op_type == "Gather" and attributes.get("axis", 0) == 0:
            weight = self._weight(node.input[0])
            if weight is not None:
                names = self._integers(node.input[0], weight, axis=1, largest=127)
                inputs = [*names, node.input[1]]
                yield make_node("Embedding", inputs, node.output, domain=_DOMAIN)
                return
        factors = {attributes.get(name, 1) for name in ("alpha", "beta")}
        is_linear = node.op_type in ("MatMul", "Gemm") and not attributes.get("transA")
        if is_linear and factors == {1}:
            weight = self._weight(node.input[1])
            if weight is not None:
                yield from self._linear(node, weight, bool(attributes.get("transB")))
                return
        yield node

    def _linear(
        self, node: onnx.NodeProto, weight: np.ndarray, is_transposed: bool
    ) -> Iterator[onnx.NodeProto]:
        tokens, name = node.input[:2]
        (output,) = node.output
        if is_transposed:
            weight, name = weight.T, f"{name}.transposed"
        activations = [f"{tokens}.uint8", f"{tokens}.scales"]
        if tokens not in self._tokens:  # several layers may read them
            self._tokens.add(tokens)
            yield make_node("Tokens", [tokens], activations, domain=_DOMAIN)
        inputs = activations + self._integers(name, weight, axis=0, largest=_MAX_INTEGER)
        if len(node.input) == 2:
            yield make_node("Linear", inputs, [output], domain=_DOMAIN)
            return
        yield make_node("Linear", inputs, [f"{output}.unbiased"], domain=_DOMAIN)
        yield make_node("Add", [f"{output}.unbiased", node.input[2]], [output])

    def _weight(self, name: str) -> np.ndarray | None:
        """Return a weight that is a large matrix in fp32, None for anything else."""
        tensor = self._weights.get(name)
        if tensor is None or len(tensor.dims) != 2 or min(tensor.dims) < _MIN_WIDTH:
            return None
        weight = numpy_helper.to_array(tensor)
        return weight if weight.dtype == np.float32 else None

    def _integers(self, name: str, weight: np.ndarray, axis: int, largest: int) -> list[str]:
        """Add a matrix in 8 bits and the scales of its rows or columns, and return their names."""
        scales = np.abs(weight).max(axis=axis, keepdims=True) / np.float32(largest)
        scales[scales == 0] = 1
        values = np.rint(weight / scales).astype(np.int8)
        names = [f"{name}.axis{axis}.int8", f"{name}.axis{axis}.scales"]
        for new, numbers in zip(names, (values, scales), strict=True):
            self.added[new] = numpy_helper.from_array(numbers, new)
        return names
