"""The models of the yardstick: five of `scripts.capture_parity`, and four more, with random weights.

Comes in: a model's name and a dtype. Goes out: a `TrainedModel` in training mode. Called by the child of a
model; transformers and torchvision are imported here alone. Attention is written out (eager) in qwen3, t5,
bert and swin, `scaled_dot_product_attention` in gpt2 and mixtral, and `multi_head_attention_forward` in
vit. Fused attention drops no weights: a random call has no reference.
"""

from collections.abc import Callable
from typing import Any

import torch

from scripts.capture_parity.models import (
    MODELS as PARITY,
)
from scripts.capture_parity.models import (
    SEED,
    Batch,
    TrainedModel,
    load_torchvision,
    of_pictures,
)

_CLASSES, _PIXELS = 10, 32


def _resnet() -> TrainedModel:
    """Convolutions, batch norm, and changes in place: a ResNet with an eighth of the channels."""
    from torchvision.models.resnet import BasicBlock, ResNet

    class Narrow(ResNet):  # type: ignore[misc]
        def _make_layer(self, block: Any, planes: int, *args: Any, **kwargs: Any) -> Any:
            return super()._make_layer(block, planes // 8, *args, **kwargs)

    module = Narrow(BasicBlock, [1, 1, 1, 1], num_classes=_CLASSES)
    module.fc = torch.nn.Linear(64, _CLASSES)
    return of_pictures(module, _CLASSES, _PIXELS)


def _densenet() -> TrainedModel:
    """Convolutions of concatenated layers."""
    from torchvision.models import DenseNet

    module = DenseNet(
        growth_rate=8, block_config=(2, 2), num_init_features=16, num_classes=_CLASSES
    )
    return of_pictures(module, _CLASSES, _PIXELS)


def _vit() -> TrainedModel:
    """Attention by torch's own module, layer norms, GELU, dropout."""
    from torchvision.models import VisionTransformer

    module = VisionTransformer(
        image_size=_PIXELS,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=64,
        dropout=0.1,
        num_classes=_CLASSES,
    )
    # The head begins with zeros, behind which nothing has a gradient.
    torch.nn.init.normal_(module.heads.head.weight, std=0.1)
    return of_pictures(module, _CLASSES, _PIXELS)


def _gpt2() -> TrainedModel:
    """Fused attention, layer norm, GELU by tanh, dropout, a convolution written as `addmm`."""
    made = PARITY["gpt2"]()
    for module in made.module.modules():
        if hasattr(module, "attn_dropout"):
            module.attn_dropout.p = 0.0
    return made


def _t5() -> TrainedModel:
    """An encoder and a decoder, relative positions in buckets, attention written out, with dropout."""
    made = PARITY["t5"]()
    made.module.set_attn_implementation("eager")
    return made


def _bert() -> TrainedModel:
    """Attention in both directions, dropout, and a head that shares the embedding's weight."""
    from transformers import BertConfig, BertForMaskedLM

    words = 512
    config = BertConfig(
        vocab_size=words,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    module = BertForMaskedLM(config)

    def batch(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randint(1, words, (2, 24), generator=generator),)

    def loss_of(given: Batch) -> torch.Tensor:
        (tokens,) = given
        found: torch.Tensor = module(input_ids=tokens, labels=tokens).loss
        return found

    return TrainedModel(module, batch, loss_of)


MODELS: dict[str, Callable[[], TrainedModel]] = {
    **{name: PARITY[name] for name in ("qwen3", "mixtral", "swin")},
    "gpt2": _gpt2,
    "t5": _t5,
    "resnet": _resnet,
    "densenet": _densenet,
    "vit": _vit,
    "bert": _bert,
}


def make_victim(name: str, dtype: torch.dtype) -> TrainedModel:
    """Return a model in a dtype with weights that are the same each time, in training mode."""
    load_torchvision()
    torch.manual_seed(SEED)
    made = MODELS[name]()
    made.module.to(dtype).train()

    def loss_of(batch: Batch) -> torch.Tensor:
        return made.loss_of(
            tuple(each.to(dtype) if each.is_floating_point() else each for each in batch)
        )

    return made._replace(loss_of=loss_of)
