"""Encoder and heads as one module that can be converted as a whole and still gives its features."""

from __future__ import annotations

from torch import Tensor, fx, nn


class FeatureMark(nn.Module):
    """Passes features through; marks in a traced graph where the encoder ends."""

    is_traced_whole = True

    def forward(self, x: Tensor) -> Tensor:
        """Return x."""
        return x


class SelfSupervisedNetwork(nn.Module):
    """``heads(features)``, ``features = encoder(images)``: what clients train and send."""

    def __init__(self, encoder: nn.Module, heads: nn.Module) -> None:
        super().__init__()
        self.encoder, self.mark, self.heads = encoder, FeatureMark(), heads

    def forward(self, x: Tensor) -> Tensor:
        """Images (2N, C, H, W) to the objective's inputs (2N, d)."""
        return self.heads(self.mark(self.encoder(x)))  # type: ignore[no-any-return]


def feature_extractor(model: nn.Module) -> nn.Module:
    """The part of a (converted) network up to its features, packable as the model is; weights are shared with it."""
    if isinstance(model, SelfSupervisedNetwork):
        return model.encoder
    if not isinstance(model, fx.GraphModule):
        raise ValueError(f"no features are marked in a {type(model).__name__}; build it with SelfSupervisedNetwork")
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in model.graph.nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
        if node.op == "call_module" and isinstance(model.get_submodule(str(node.target)), FeatureMark):
            graph.output(copies[node])
            extractor = fx.GraphModule(model, graph)
            extractor.train(model.training)
            extractor.meta |= model.meta
            return extractor
    raise ValueError("no features are marked in this model; build it with SelfSupervisedNetwork")


__all__ = ["FeatureMark", "SelfSupervisedNetwork", "feature_extractor"]
