"""Rules about the source, its columns and its splits."""

from finetune.rules.options import Mistakes, OptionValues

#: Options that exclude each other.
_COLUMNS = (
    ("group_column", "time_column"),
    ("label_column", "label_columns"),
    ("text_column", "text_columns"),
)


def _require_source(options: OptionValues) -> Mistakes:
    if options.dataset and "load" in options.overridden and "dataset" not in options.overridden:
        yield (
            f"--dataset {options.dataset}: the recipe loads its own data; if its load() reads "
            "self.dataset, declare `dataset: str = ...` in the class"
        )
    for name, other in _COLUMNS:
        other_value = getattr(options, other)
        if name in options.typed and other_value is not None:
            flags = f"--{name} {options.typed[name]} and --{other} {other_value}"
            yield f"{flags}: set only one of the two"
    if options.time_format and not options.time_column:
        yield f"--time_format {options.time_format}: needs --time_column NAME"


def _require_one_text(options: OptionValues) -> Mistakes:
    if options.text_columns and options.long_texts == "windows":
        yield "--long_texts windows: needs a single --text_column, not --text_columns"
    if options.truncation != "head_tail":
        return
    if options.text_columns or options.long_texts == "windows":
        yield "--truncation head_tail: needs a single --text_column and --long_texts cut"
    for name in ("prepare", "encoder"):
        if name in options.overridden and "truncation" not in options.overridden:
            yield f"--truncation head_tail: the recipe overrides {name}()"


RULES = (_require_source, _require_one_text)
