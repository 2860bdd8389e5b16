// Nodes, figures in words, and plots.

export function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "rect", "line"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export const figures = (value) => value >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3)).toString();
export const seconds = (s) => s >= 1 || !s ? `${figures(s)} s` : s >= 1e-3 ? `${figures(s * 1e3)} ms` : `${figures(s * 1e6)} µs`;
export const bytes = (n) => n >= 1e9 ? `${figures(n / 1e9)} GB` : `${figures(n / 1e6)} MB`;
export const percent = (share) => `${figures(100 * share)} %`;

// ---- plots, which uPlot draws on a canvas (uplot/README.md)

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
export const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

export function axis(options) {
  const lines = { stroke: () => colour("line"), width: 1 }, font = `${0.8 * rem()}px system-ui, sans-serif`;
  return { stroke: () => colour("soft"), font, labelFont: font, labelSize: 1.4 * rem(), size: 2.6 * rem(), grid: lines, ticks: lines, ...options };
}

// A chart of `height` rem that is as wide as `node`, in place of the one that is there.
export function chart(node, height, options, data) {
  node.chart?.destroy();
  node.replaceChildren();
  node.chart = new uPlot({ width: node.clientWidth, height: height * rem(), ...options }, data, node);
  resized.observe(node);
}

const resized = new ResizeObserver((entries) => {
  for (const { target: { chart, clientWidth } } of entries) if (clientWidth && chart.width !== clientWidth) chart.setSize({ width: clientWidth, height: chart.height });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const { parentNode } of document.querySelectorAll(".uplot")) parentNode.chart.redraw();
});

// The step against what `points` differ in, on axes that are logarithmic where values differ threefold, beside a table of it.
export function plot(node, what, points) {
  const scale = (values) => Math.max(...values) > 3 * Math.min(...values) ? { distr: 3 } : {};
  const places = points.map((p) => p.place), steps = points.map((p) => p.step_s), tight = points.some((p) => p.verdict !== "fits");
  const series = (label, ink, path) => ({ label, stroke: () => colour(ink), width: rem() / 8, ...path, points: { size: rem() / 2, fill: () => colour(ink) }, value: (_, s) => s == null ? "" : seconds(s) });
  const table = node.parentNode.lastElementChild, said = points.map((p) => `${p.name} ${seconds(p.step_s)}, ${p.verdict}`).join("; ");
  chart(node, 18, {
    padding: [rem(), 2 * rem(), 0, 0], scales: { x: { time: false, log: 2, ...scale(places) }, y: scale(steps) }, cursor: { y: false, drag: { x: false } },
    legend: { markers: { stroke: (_, s) => [null, "var(--accent)", "var(--bad)"][s] } },
    axes: [axis({ label: what, values: (_, values) => values.map((value) => value == null ? "" : figures(value)) }), axis({ size: 4.2 * rem(), values: (_, values) => values.map((s) => s == null ? "" : seconds(s)) })],
    series: [{ label: what, value: (_, place) => place == null ? "" : figures(place) }, series("step", "accent"), ...(tight ? [series("step that may not fit", "bad", { paths: () => null })] : [])],
  }, [places, steps, ...(tight ? [points.map((p) => p.verdict === "fits" ? null : p.step_s)] : [])]);
  node.setAttribute("aria-label", said);
  const row = (kind, scope, cells) => make("tr", {}, ...cells.map((cell) => make(kind, scope, cell)));
  table.replaceChildren(make("table", {}, make("thead", {}, row("th", { scope: "col" }, [what, "step", "memory"])), make("tbody", {}, ...points.map((p) => row("td", {}, [p.label, seconds(p.step_s), p.verdict])))));
}
