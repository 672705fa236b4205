"""Local `evaluate` metrics, one folder each; load one with `evaluate.load(<path of its folder>)`.

The folders are data of this package: `evaluate` copies a metric's file into its modules cache and
imports the copy, so each file stands alone and is not imported as `metrics.<name>`.
"""
