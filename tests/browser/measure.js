// Returns what is wrong with the texts of the visible figures, as sentences.
() => {
  const SLACK = 1; // pixels: glyphs do not fill their boxes
  const SHORTEST = 4;
  const found = [];
  const sizes = [];
  const boxOf = (element) => element.getBoundingClientRect();
  const meet = (a, b, slack) =>
    a.left + slack < b.right && b.left + slack < a.right &&
    a.top + slack < b.bottom && b.top + slack < a.bottom;
  // Letters are lower than the box of a line of text.
  const lettersOf = (box) => ({ left: box.left, right: box.right,
    top: box.top + box.height * 0.15, bottom: box.bottom - box.height * 0.15 });
  const figures = [...document.querySelectorAll("figure svg[role=img]")]
    .filter((svg) => svg.getClientRects().length);
  for (const svg of figures) {
    const name = svg.querySelector("title").textContent;
    const frame = boxOf(svg);
    const texts = [...svg.querySelectorAll("text")].map((text) => [text.textContent, boxOf(text)]);
    const scale = frame.width / svg.viewBox.baseVal.width;
    for (const text of svg.querySelectorAll("text")) {
      sizes.push(scale * parseFloat(getComputedStyle(text).fontSize));
    }
    texts.forEach(([text, box], index) => {
      if (box.left < frame.left - SLACK || box.right > frame.right + SLACK ||
          box.top < frame.top - SLACK || box.bottom > frame.bottom + SLACK) {
        found.push(`${name}: ${text} leaves the panel`);
      }
      for (const [other, otherBox] of texts.slice(index + 1)) {
        if (meet(lettersOf(box), lettersOf(otherBox), SLACK)) found.push(`${name}: ${text} over ${other}`);
      }
    });
    const windowOf = (element) => {
      const clipped = element.closest("[clip-path]");
      if (!clipped) return frame;
      const id = clipped.getAttribute("clip-path").slice(5, -1);
      const rect = document.getElementById(id).querySelector("rect");
      const [x, y, width, height] = ["x", "y", "width", "height"]
        .map((key) => scale * Number(rect.getAttribute(key)));
      return { left: frame.left + x, right: frame.left + x + width,
        top: frame.top + y, bottom: frame.top + y + height };
    };
    const marks = [...svg.querySelectorAll("use")]
      .map((mark) => [boxOf(mark), windowOf(mark)])
      .filter(([box, seen]) => meet(box, seen, 0))
      .map(([box, seen]) => ({ left: Math.max(box.left, seen.left),
        right: Math.min(box.right, seen.right), top: Math.max(box.top, seen.top),
        bottom: Math.min(box.bottom, seen.bottom) }));
    for (const path of svg.querySelectorAll("path")) {
      const style = getComputedStyle(path);
      const isSeen = style.fill !== "none" || style.stroke !== "none";
      if (!isSeen || path.closest("defs, clipPath, pattern")) continue;
      const length = path.getTotalLength();
      const matrix = path.getScreenCTM();
      const seen = windowOf(path);
      for (let at = 0; length > SHORTEST && at <= length; at += 3) {
        const point = path.getPointAtLength(at).matrixTransform(matrix);
        const mark = { left: point.x, right: point.x, top: point.y, bottom: point.y };
        if (meet(mark, seen, -SLACK)) marks.push(mark);
      }
    }
    for (const [text, box] of texts) {
      // Letters are lower than the box of a line of text.
      const inner = { left: box.left + 1, right: box.right - 1,
        top: box.top + box.height * 0.2, bottom: box.bottom - box.height * 0.2 };
      if (marks.some((mark) => meet(mark, inner, 0))) found.push(`${name}: ${text} over data`);
    }
  }
  return { found: [...new Set(found)], smallest: sizes.length ? Math.min(...sizes) : null,
    figures: figures.length };
}
