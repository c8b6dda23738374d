"""Text of rows: what is accepted as text, and the little that is changed in it.

Enters: any value that a mapping points at. Leaves: a string that every tokenizer, file and server
takes, or a refusal. CR and CRLF become LF; nothing else is changed: no Unicode normalisation and no
trimming, because the prompt is the user's and the target shall see it as it was written (the
prompt's id does look past such differences, see `record.hash_prompt`).
"""

from __future__ import annotations

from tasks.prompts.record import RowRefused

_MEDIA_KEYS = frozenset(
    [
        "image",
        "image_url",
        "images",
        "input_image",
        "video",
        "video_url",
        "audio",
        "audio_url",
        "input_audio",
        "file",
    ]
)


def clean_text(value: object, what: str) -> str:
    """Return a text with plain line ends.

    Raises:
        RowRefused: `not_text` if it is no string, or holds NUL or lone surrogates.
    """
    if not isinstance(value, str):
        raise RowRefused("not_text", f"{what} is {type(value).__name__}, not a string")
    if "\x00" in value:
        raise RowRefused("not_text", f"{what} holds a NUL character")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RowRefused("not_text", f"{what} holds a lone surrogate") from None
    if "\r" in value:
        value = value.replace("\r\n", "\n").replace("\r", "\n")
    return value


def flatten_content(value: object, what: str) -> str:
    """Return a message's content as one text; a list of parts is joined as templates join it.

    Raises:
        RowRefused: `image` for a part that is not text, `not_text` for what is no content.
    """
    if isinstance(value, str):
        return clean_text(value, what)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return clean_text(value, what)
    return "".join(_read_part(part, what) for part in value)


def _read_part(part: object, what: str) -> str:
    if not isinstance(part, dict):
        return clean_text(part, f"a part of {what}")
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text") or (kind is None and "text" in part):
        return clean_text(part.get("text"), f"a text part of {what}")
    if (isinstance(kind, str) and kind in _MEDIA_KEYS) or not _MEDIA_KEYS.isdisjoint(part):
        raise RowRefused("image", f"{what} has a part that is not text")
    raise RowRefused("not_text", f"{what} has a part of an unknown type")
