/* Texts whose contrast with the ground behind them is below what WCAG AA asks for. */
(() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  function rgb(colour) {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return Array.from(pen.getImageData(0, 0, 1, 1).data);
  }
  function light([r, g, b]) {
    const part = [r, g, b].map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  }
  function ground(element) {
    for (let at = element; at; at = at.parentElement) {
      const found = rgb(getComputedStyle(at).backgroundColor);
      if (found[3] === 255) return found;
    }
    return rgb("white");
  }
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(rgb(style.color)), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700) ? 3 : 4.5;
    if (ratio < least) poor.push(`${walker.currentNode.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
})()
