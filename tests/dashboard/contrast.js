// Evaluated in a page: every visible text whose contrast with what lies behind it is below 4.5 (WCAG 2.2, AA).
() => {
  const channel = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = (css) => {
    const [r, g, b] = css.match(/[\d.]+/g).map((v) => channel(Number(v) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/rgba\(.*, 0\)|transparent|color\(/.test(colour)) return colour;
    }
    return getComputedStyle(document.documentElement).backgroundColor;
  };
  const ratio = (element) => {
    const [a, b] = [luminance(getComputedStyle(element).color), luminance(behind(element))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  return [...document.querySelectorAll("p, dt, dd, h1, h2, a, .tag, .button, label, .link")]
    .filter((element) => element.offsetParent && element.textContent.trim() && ratio(element) < 4.5)
    .map((element) => [ratio(element).toFixed(2), element.outerHTML.slice(0, 90)]);
}
