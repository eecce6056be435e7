"""Formulas as MathML, which browsers show by themselves: no script, no network, and they can be selected."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def setup(app):
    """Register the renderer, and choose it."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def mathml(node, as_block):
    """Return a formula as MathML; a macron is a bar that plain fonts do not draw through the letter."""
    return tex2mathml(node.astext(), as_block=as_block).replace(">ˉ<", ">¯<")


def inline(writer, node):
    """Write a formula in a line of text."""
    writer.body.append(mathml(node, as_block=False))
    raise nodes.SkipNode


def block(writer, node):
    """Write a formula on a line of its own, with its number if it has a label."""
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    writer.body.append(mathml(node, as_block=True))
    if node["number"]:
        writer.body.append(f'<span class="eqno">({node["number"]})</span>')
    writer.body.append("</div>\n")
    raise nodes.SkipNode
