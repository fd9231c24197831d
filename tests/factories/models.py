"""Tiny models in Hugging Face layout: a char tokenizer and random weights, untied or tied."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

VOCAB_SIZE = 128
CONTEXT = 256
PAD, BOS, EOS = 0, 1, 2


def config(*, tied: bool, dtype: str = "float32", kv_heads: int = 2) -> PretrainedConfig:
    """Two layers, 128 wide, 4 heads of 32 on key-value heads: an untied Llama, or a Qwen3, which
    has head norms too and a head that is tied to the embedding."""
    values: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "head_dim": 32,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": tied,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "dtype": dtype,
    }
    if tied:
        return Qwen3Config(architectures=["Qwen3ForCausalLM"], **values)
    return LlamaConfig(architectures=["LlamaForCausalLM"], rms_norm_eps=1e-5, **values)


def build(
    folder: Path, *, tied: bool, seed: int, dtype: str = "float32", kv_heads: int = 2
) -> PreTrainedModel:
    """Save a random model and its tokenizer; returns the model in that dtype.

    Weights are drawn wide (std 0.1), so that distributions are far from uniform and two seeds
    differ by several nats.
    """
    torch.manual_seed(seed)
    described = config(tied=tied, dtype=dtype, kv_heads=kv_heads)
    model = AutoModelForCausalLM.from_config(described).to(getattr(torch, dtype))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
            else:
                parameter.normal_(0.0, 0.1)
    model.eval()
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


def tokenizer() -> PreTrainedTokenizerFast:
    """Printable ASCII, one token per character, and a chat template that only appends."""
    special = ["<pad>", "<bos>", "<eos>", "<unk>", "<|user|>", "<|assistant|>", "<|tool|>"]
    characters = [chr(code) for code in range(32, 127)]
    symbols = special + characters
    symbols += [f"<unused{index}>" for index in range(VOCAB_SIZE - len(symbols))]
    inner = Tokenizer(WordLevel({symbol: i for i, symbol in enumerate(symbols)}, unk_token="<unk>"))
    inner.pre_tokenizer = Split(Regex("."), behavior="isolated")
    built = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens=special[4:],
    )
    built.chat_template = (
        "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>"
        "{{ message.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return built
