for (const svg of document.querySelectorAll("svg.chart")) {
  const axis = (words) => {
    const [scale, first, last, low, high] = words.split(" ").map((word, at) => (at ? Number(word) : word));
    const log = scale === "log";
    const [from, to] = log ? [Math.log(low), Math.log(high)] : [low, high];
    return (pixel) => {
      const value = from + ((pixel - first) / (last - first)) * (to - from);
      return log ? Math.exp(value) : value;
    };
  };
  const x = axis(svg.dataset.x), y = axis(svg.dataset.y);
  const curves = [...svg.querySelectorAll("path[data-name]")].map((path) => ({
    name: path.dataset.name,
    places: path.getAttribute("d").split(/[ML ]/).filter(Boolean).map((pair) => pair.split(",").map(parseFloat)),
  }));
  if (!curves.length) continue;
  const box = document.createElement("div");
  box.className = "hover";
  svg.addEventListener("pointerleave", () => box.remove());
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const nearest = (places) => places.reduce((a, b) => (Math.abs(b[0] - at.x) < Math.abs(a[0] - at.x) ? b : a));
    const found = curves.map(({ name, places }) => [name, nearest(places)]);
    const number = (value) => String(Number(value.toPrecision(4)));
    const lines = found.map(([name, place]) => `${name}: ${number(y(place[1]))}`);
    box.textContent = [`step ${Math.round(x(found[0][1][0]))}`, ...lines].join("\n");
    svg.parentNode.append(box);
    const frame = svg.parentNode.getBoundingClientRect();
    const [left, top] = [event.clientX - frame.left + 14, event.clientY - frame.top + 14];
    box.style.left = `${Math.min(left, frame.width - box.offsetWidth - 6)}px`;
    box.style.top = `${top}px`;
  });
}
