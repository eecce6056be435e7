"""The paper's experiments: data sets, methods, one table of results, figures."""
