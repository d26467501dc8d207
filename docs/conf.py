"""The site: `sphinx-build -W -c docs -b html . site/html`, from the root of a clone.

Sources are read from the root, so that pages link to notebooks, results and code as they do in the
repository. Notebooks are rendered and not run.
"""

import inspect
import re

import vitx

project, author, copyright = "vitx", "The vitx authors", "the vitx authors, Apache-2.0"
release = vitx.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**", "colab/*", "results/**", "CHANGELOG.md", "CONTRIBUTING.md"]
default_role = "code"
html_theme = "furo"
html_title = "vitx"
html_extra_path = ["front"]  # `index.html`, which leads to `docs/index.html`

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"

autodoc_default_options = {"members": True, "exclude-members": "dtype"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# As a section of its own, so that the text before a colon is not taken for a type.
napoleon_custom_sections = ["Returns"]
python_maximum_signature_line_length = 90


def plain_signature(app, what, name, obj, options, signature, returned):
  """Returns a class's signature without annotations and without Flax's own fields.

  The description of each field has its type.
  """
  if what != "class" or not signature:
    return None
  parameters = inspect.signature(obj).parameters.values()
  own = [p.replace(annotation=p.empty) for p in parameters if p.name not in ("parent", "name")]
  text = str(inspect.Signature(own))
  return re.sub(r"<(?:class|function) '?([\w.]+)[^>]*>", r"\1", text), returned


def plain_docstring(app, what, name, obj, options, lines):
  """Writes a docstring's bars and a module's examples in the words of reStructuredText."""
  text = "\n".join(lines)
  text = re.sub(r"\|(?=\S[^|`\n]*\|)", r"\|", text)  # |x| is an absolute value, no substitution
  if what == "module":
    text = re.sub(r"\n\n(?=    \S)", "\n\n::\n\n", text)
  lines[:] = text.split("\n")


def setup(app):
  app.connect("autodoc-process-signature", plain_signature)
  app.connect("autodoc-process-docstring", plain_docstring)
