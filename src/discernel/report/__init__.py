"""A report: one HTML page about a fitted model, which needs nothing but itself."""

from discernel.report.page import make_report

__all__ = ["make_report"]
