"""What the user can set about the target model."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ModelConfig(BaseModel):
    """The target: the model whose answers the drafter shall predict."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    path: str = Field(
        description="Hub repository or folder of the target model.", min_length=1, pattern=r"^[^-]"
    )
    revision: str | None = Field(default=None, description="Commit of the model; empty: newest.")
    tokenizer: str | None = Field(
        default=None, description="Folder or repository of the tokenizer; empty: the model's own."
    )
    served_name: str | None = Field(
        default=None, description="Name that the servers give it; empty: the model's path."
    )
    dtype: Literal["auto", "bfloat16", "float16"] = Field(
        default="auto", description="Precision of the weights."
    )
    quantization: str | None = Field(default=None, description="Quantisation; empty: none.")
    context_length: int = Field(
        default=8192, ge=256, le=1_048_576, description="Tokens of prompt and answer together."
    )
    thinking: bool = Field(default=True, description="Whether the model thinks before it answers.")
    reasoning_parser: Literal["qwen3"] | None = Field(
        default="qwen3", description="How thinking is told from the answer."
    )
    tool_call_parser: Literal["qwen3_coder"] | None = Field(
        default="qwen3_coder", description="How tool calls are read from an answer."
    )

    @property
    def tokenizer_path(self) -> str:
        """Where the tokenizer is loaded from."""
        return self.tokenizer or self.path

    @property
    def name(self) -> str:
        """Name sent in requests."""
        return self.served_name or self.path
