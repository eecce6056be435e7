"""How `make docs` builds the site. Nothing in it comes from the network, to be built or to be read."""

import sys
from pathlib import Path

import discernel

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "Discernel"
release = discernel.__version__
html_title = f"Discernel {release}"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    "mathml",
    "pages",
]
exclude_patterns = ["gallery/*.md5", "gallery/*.ipynb", "gallery/*.py"]

# Links: what Markdown names with a role has to be there; in docstrings, single quotes are also round plain words.
nitpicky = True
default_role = "py:obj"
nitpick_ignore_regex = [("py:obj", ".*"), ("py:class", ".*")]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
templates_path = ["templates"]
rst_prolog = ".. currentmodule:: discernel\n"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "ExampleTitleSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,
    "capture_repr": (),
}

# It means the whole path: the checkout may be in a folder with a space. Links that break are found by links.py.
suppress_warnings = ["sphinx_gallery.space_in_filename"]

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_sidebars = {page: [] for page in ("*", "generated/benchmarks", "generated/command_line")}  # they have no parts
html_context = {"default_mode": "auto"}
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}
copyright = "the authors of Discernel, BSD-3-Clause"
