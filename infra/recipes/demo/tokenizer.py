"""The demo's tokenizer and chat template, as other tools read them from a model folder."""

from pathlib import Path
from typing import Any

from infra.recipes.demo.task import BOS, EOS, PAD, TOKEN_IDS

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'tool' -%}<res>{{ message['content'] }}</res>"
    "{%- else -%}{{ message['content'] }}"
    "{%- endif -%}{%- endfor -%}"
)
"""What was said, one after the other: an assistant's turn is exactly what it wrote."""


def build_tokenizer() -> Any:
    """A `PreTrainedTokenizerFast` in which every symbol of the task is one token."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(TOKEN_IDS, unk_token=PAD))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Split(
        tokenizers.Regex(r"</?[a-z]+[0-9]*>|."), behavior="isolated"
    )
    core.decoder = tokenizers.decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_tokenizer(folder: Path) -> None:
    """Write the tokenizer and its template into a model folder."""
    build_tokenizer().save_pretrained(folder)
