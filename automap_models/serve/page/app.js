// The page of `automap serve`. Its state is a question (automap_models/serve/questions.py), which the address holds:
//
//     controls ─► state ─► address
//                   └────► /api/price, then /api/choices and /api/timeline ─► what is shown
//
// A page that `automap serve --static` wrote (automap_models/serve/static.py) reads the answers from files beside it.

import { axis, bytes, chart, colour, figures, make, percent, plot, rem, seconds } from "./draw.js";

const LANES = [ // field, what it is, the value that is not said; null where the server chooses
  ["tp", "tensor parallel", 1], ["pp", "pipeline ranks", 1], ["cp", "context parallel", 1], ["ep", "expert parallel", 1],
  ["etp", "devices that share each expert", null], ["vp", "virtual stages a rank", null], ["micro_batch", "samples of a micro-batch", 1], ["schedule", "order of passes", null],
  ["recompute", "in the backward pass", "none"], ["zero", "what data parallelism divides", 0], ["dp_replicate", "groups of ranks in which it does (HSDP)", 1],
  ["sequence_parallel", "beside tp", false], ["offload", "in the memory of hosts", "none"],
  ["precision", "of weights and activations", null],
];
const WORDS = {
  zero: ["nothing", "1 optimizer", "2 gradients", "3 weights (FSDP)"], sequence_parallel: { false: "off", true: "on" },
  offload: { none: "nothing", optimizer: "optimizer" },
  names: { micro_batch: "micro-batch", zero: "ZeRO", dp_replicate: "ZeRO groups", sequence_parallel: "sequence parallel" },
};
const TRAINING = ["lora", "freeze", "packed", "quantize", "loss", "optimizer", "states"];
const INPUTS = ["model", "cluster", "sequence", "global_batch", "runtime", "config", ...TRAINING];
const COUNTS = ["sequence", "global_batch", "packed"];
const EXACT = ["layers", "recompute_blocks", "dispatcher", "tower_tp"]; // what a search finds and no control says
const CLEARS = { // a field → what a search found that means nothing beside another value of it
  model: [...EXACT, "etp"], config: [...EXACT, "etp", "profile"], profile: [...EXACT, "etp", "config", "sequence"], cluster: [...EXACT, "etp", "dp_replicate"], pp: ["layers", "recompute_blocks"], vp: ["layers", "recompute_blocks"],
  schedule: ["layers", "recompute_blocks"], tp: ["etp", "tower_tp"], cp: ["tower_tp"], zero: ["dp_replicate"], ep: ["etp", "dispatcher"], recompute: ["recompute_blocks"],
};
const PARTS = {
  compute_s: "compute", recompute_s: "recomputation", tensor_parallel_s: "tensor parallelism", context_parallel_s: "context parallelism",
  expert_parallel_s: "tokens to experts", bubble_s: "idle (bubble)", transfers_s: "transfers between ranks",
  data_parallel_s: "gradients and weights", optimizer_s: "optimizer",
};
const MEMORY = ["weights", "gradients", "optimizer", "gathered", "activations", "temporary", "runtime"];
const PASSES = ["forward", "backward", "input-gradient", "weight-gradient", "all-reduce", "update", "tied-sum"];
const MOST_COMPARED = 4;

const $ = (id) => document.getElementById(id);
const form = $("controls");
let state = {}, compared = [], price = null, best = null, fixed = null, running = null, timer = 0, drawn = null;

const nameOf = (field) => WORDS.names[field] ?? field;
const wordOf = (field, value) => Array.isArray(value) ? "by stage" : WORDS[field]?.[value] ?? String(value);

async function ask(path, question, signal) {
  if (fixed) return stored(path, question);
  const headers = { "Content-Type": "application/json" };
  const reply = await fetch(`api/${path}`, { method: "POST", headers, body: JSON.stringify(question), signal });
  const answer = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(answer.sentence), { field: answer.field });
  return answer;
}

// ---- answers in files

const files = {}; // address → what is there, once
const load = (path) => files[path] ??= fetch(path).then((reply) => reply.ok ? reply.json() : null);
const keyOf = ({ model, cluster, ...fields }) => Object.entries(fields).map(([name, value]) => `${name}=${value}`).sort().join("&");

async function stored(path, question) {
  const [name, target] = path.split("/"), folder = `answers/${question.model}/${question.cluster}`;
  const computed = fixed.models.includes(question.model) && fixed.clusters.includes(question.cluster);
  const index = computed ? await load(`${folder}/index.json`) : null, place = index?.strategies[keyOf(question)];
  const held = name === "best" ? index : typeof place === "number" ? await load(`${folder}/${place}.json`) : { [name]: place };
  const answer = target ? held?.[name]?.[target] : held?.[name];
  const what = computed ? "This strategy was not computed for this page." : `This page was computed for ${fixed.models.join(", ")} on ${fixed.clusters.join(", ")}.`;
  if (!answer || answer.sentence) throw Object.assign(new Error(answer?.sentence ?? what), { field: answer?.field });
  return answer;
}

// ---- the state, and the address that holds it

const isDefault = (field, value) => value == null || value === "" || value === LANES.find(([name]) => name === field)?.[2];

function set(field, value) {
  for (const name of CLEARS[field] ?? []) delete state[name];
  if (CLEARS[field]?.includes("recompute_blocks") && Array.isArray(state.recompute)) delete state.recompute;
  if (isDefault(field, value)) delete state[field]; else state[field] = value;
}

const encoded = (question) => new URLSearchParams(Object.entries(question)).toString();

function decoded(text) {
  const lists = ["layers", "recompute_blocks"], texts = ["model", "cluster", "runtime", "config", "profile", "schedule", "precision", "dispatcher", "offload", "lora", "freeze", "loss", "optimizer", "states"];
  return Object.fromEntries([...new URLSearchParams(text)].map(([name, value]) => {
    if (texts.includes(name)) return [name, value];
    if (lists.includes(name)) return [name, value.split(",").map(Number)];
    if (name === "recompute") return [name, value.includes(",") ? value.split(",") : value];
    if (["sequence_parallel", "quantize"].includes(name)) return [name, value === "true"];
    return [name, Number(value)];
  }));
}

function readAddress() {
  const parts = location.hash.slice(1).split("|").filter(Boolean);
  state = { model: fixed?.models[0] ?? "llama3-8b", cluster: fixed?.clusters[0] ?? "32xh100", ...decoded(parts[0] ?? "") };
  compared = parts.slice(1, 1 + MOST_COMPARED).map((text) => ({ question: decoded(text) }));
  for (const entry of compared) ask("price", entry.question).then((answer) => { entry.price = answer; showCompared(); }, showRefusal);
  fill();
  update();
}

function writeAddress() {
  history.replaceState(null, "", `#${[encoded(state), ...compared.map((entry) => encoded(entry.question))].join("|")}`);
}

// ---- controls

function fill() {
  for (const name of INPUTS) if (form.elements[name] !== document.activeElement) form.elements[name].value = state[name] ?? "";
  $("config").open = $("config").open || Boolean(state.config);
  $("training").open = $("training").open || TRAINING.some((name) => state[name] != null);
  for (const lane of $("lanes").children) check(lane);
  const said = EXACT.filter((name) => state[name] != null).map((name) => `${nameOf(name)} ${state[name]}`);
  $("exact").hidden = !said.length;
  const forget = () => { for (const name of EXACT) set(name, null); changed(); };
  $("exact").replaceChildren(`As found: ${said.join("; ")} `, make("button", { type: "button", click: forget }, "Forget"));
}

function lane(field, meaning) {
  const values = make("div", { class: "values" }), reason = make("p", { class: "reason", id: `reason-${field}` });
  const legend = make("legend", {}, `${nameOf(field)} `, make("small", {}, meaning));
  return make("fieldset", { id: `lane-${field}`, "aria-describedby": reason.id }, legend, values, reason);
}

function check(node) {
  const field = node.id.slice(5), usual = LANES.find(([name]) => name === field)[2];
  const value = JSON.stringify(state[field] ?? usual);
  for (const input of node.querySelectorAll("input")) input.checked = input.value === value;
}

function showChoices(choices) {
  for (const [field, , usual] of LANES) {
    const node = $(`lane-${field}`), offered = [...choices[field]];
    if (usual === null && !fixed) offered.unshift({ value: null, reason: null });
    const value = state[field] ?? usual;
    if (!offered.some((choice) => JSON.stringify(choice.value) === JSON.stringify(value))) offered.push({ value, reason: null });
    node.hidden = ["ep", "etp", "dp_replicate"].includes(field) && offered.length === 1; // where there is nothing to choose
    const row = node.querySelector(".values"), texts = offered.map((choice) => JSON.stringify(choice.value));
    if (texts.join() !== [...row.querySelectorAll("input")].map((input) => input.value).join())
      row.replaceChildren(...offered.map(({ value }, i) => {
        const change = () => { set(field, value); changed(); };
        const input = make("input", { type: "radio", name: `lane-${field}`, value: texts[i], change });
        return make("label", {}, input, value === null ? "auto" : wordOf(field, value));
      }));
    const refused = offered.filter((choice) => choice.reason);
    [...row.children].forEach((label, i) => {
      label.firstChild.disabled = Boolean(offered[i].reason);
      label.title = offered[i].reason ?? "";
    });
    const named = refused.filter((choice) => choice.reason === refused[0].reason).map((choice) => wordOf(field, choice.value));
    const others = refused.length > named.length ? ` (and ${refused.length - named.length} more)` : "";
    node.querySelector(".reason").textContent = refused.length ? `not ${named.join(", ")}: ${refused[0].reason}${others}` : "";
    check(node);
  }
}

function changed() {
  clearTimeout(timer);
  timer = setTimeout(update, 40);
  fill();
}

form.addEventListener("submit", (event) => event.preventDefault());
function entered({ target }) {
  if (!INPUTS.includes(target.name)) return;
  const text = target.value.trim(), number = COUNTS.includes(target.name) && /^\d+$/.test(text);
  set(target.name, number ? Number(text) : target.name === "quantize" ? text === "true" || null : text);
  if (target.name === "model") delete state.config, delete state.profile;
  if (target.name === "config" && text) state.model = "config";
  changed();
}
form.addEventListener("input", entered);
for (const choice of form.querySelectorAll("select")) choice.addEventListener("change", entered); // not all browsers send both

const inBase64 = (file) => new Promise((done) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => done(reader.result.split(",")[1]));
  reader.readAsDataURL(file);
});

async function readFile(file) {
  if (!file) return;
  if (file.name.endsWith(".npz")) set("profile", await inBase64(file));
  else set("config", await file.text());
  state.model = file.name.replace(/\.(json|npz)$/, "");
  changed();
}
form.querySelector("[type=file]").addEventListener("change", ({ target }) => readFile(target.files[0]));
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => { event.preventDefault(); readFile(event.dataTransfer.files[0]); });

// ---- answers

async function update() {
  running?.abort();
  running = new AbortController();
  const { signal } = running, question = { ...state }, begun = performance.now();
  writeAddress();
  const quietly = (error) => { if (error.name !== "AbortError") throw error; };
  try {
    showPrice(await ask("price", question, signal));
    document.body.dataset.ms = Math.round(performance.now() - begun);
  } catch (error) {
    if (error.name === "AbortError") return;
    showRefusal(error);
  }
  ask("timeline", question, signal).then(showTimeline, (error) => { if (error.name !== "AbortError") showTimeline(null, error); });
  ask("choices", question, signal).then(showChoices, quietly).catch(() => {}); // the price has said what is wrong
}

function showRefusal(error) {
  $("answer").classList.add("stale");
  $("refusal").hidden = false;
  $("refusal").textContent = error.message;
  mark(error.field);
}

function mark(field) {
  for (const node of document.querySelectorAll(".wrong")) node.classList.remove("wrong");
  ($(`lane-${field}`) ?? form.elements[field]?.closest?.("label"))?.classList.add("wrong");
}

function showPrice(answer) {
  price = answer;
  $("answer").classList.remove("stale");
  $("refusal").hidden = true;
  mark(null);
  const kind = { fits: "good", "at risk": "risk" }[price.verdict] ?? "bad";
  $("verdict").replaceChildren(`${seconds(price.step_s)} a step `, make("span", { class: kind }, price.verdict));
  $("words").textContent = price.words;
  const limit = Math.min(...price.memory.map((rank) => rank.memory_bytes));
  $("limit").textContent = `rank by rank, of ${bytes(limit)}`;
  const numbers = {
    ...(state.profile ? { "samples/s": figures(price.tokens_per_s) } // which a profile has no tokens of
      : { "tokens/s": figures(price.tokens_per_s), "tokens/s a device": figures(price.tokens_per_s_per_device), MFU: percent(price.mfu) }),
    "fullest device": bytes(price.peak_memory_bytes), "data parallel": `dp ${price.strategy.dp}`,
    "micro-batches": figures(price.strategy.micro_batches), "samples a step": figures(price.strategy.global_batch),
  };
  if (price.strategy.pp > 1) numbers["idle of passes"] = percent(price.bubble_rate);
  $("numbers").replaceChildren(...Object.entries(numbers).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  showBars($("parts"), Object.entries(PARTS), [{ label: "step", values: price.parts, total: seconds(price.step_s), most: price.step_s }],
    seconds);
  showBars($("memory"), MEMORY.map((name) => [name, name]), ranks(price), bytes);
  showDistance();
}

function ranks({ memory }) {
  const most = Math.max(...memory.flatMap((rank) => [rank.upper, rank.memory_bytes]));
  const rows = memory.map((values, i) => ({ values, first: i, last: i, limit: values.memory_bytes, upper: values.upper, total: bytes(values.total), most }));
  const alike = rows.filter((row, i) => !i || JSON.stringify(row.values) !== JSON.stringify(rows[i - 1].values));
  alike.forEach((row, i) => {
    row.last = (alike[i + 1]?.first ?? rows.length) - 1;
    row.label = row.first === row.last ? `rank ${row.first}` : `ranks ${row.first} to ${row.last}`;
  });
  return alike;
}

// A row of stacked boxes for each of `rows`, which share one scale; a mark where the limit is, a dashed box for the upper bound.
function showBars(node, kinds, rows, unit) {
  const used = kinds.filter(([key]) => rows.some((row) => row.values[key] > 0.0005 * row.most));
  const cells = rows.flatMap((row) => {
    let x = 0;
    const boxes = used.map(([key, name]) => {
      const width = 1000 * (row.values[key] ?? 0) / row.most, box = { x, y: 0, width, height: 10, class: `k${kinds.findIndex(([k]) => k === key)}` };
      x += width;
      return make("rect", box, make("title", {}, `${name}: ${unit(row.values[key] ?? 0)}`));
    });
    if (row.upper) boxes.push(make("rect", { x, y: 1, width: Math.max(0, 1000 * row.upper / row.most - x), height: 8, class: "upper" }));
    if (row.limit) boxes.push(make("line", { x1: 1000 * row.limit / row.most, x2: 1000 * row.limit / row.most, y1: 0, y2: 10, class: "mark" }));
    const said = used.map(([key, name]) => `${name} ${unit(row.values[key] ?? 0)}`).join(", ");
    const svg = make("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": `${row.label}: ${said}` }, ...boxes);
    return [make("span", {}, row.label), svg, make("span", { class: "number" }, row.total)];
  });
  const only = rows.length === 1 ? rows[0].values : null;
  node.replaceChildren(...cells, legendOf(kinds, used, (key) => only ? ` ${unit(only[key])}` : ""));
}

function legendOf(kinds, used, after = () => "") {
  return make("p", { class: "key" }, ...used.map(([key, name]) => {
    const square = make("svg", { class: "swatch", "aria-hidden": "true" }, make("rect", { width: "100%", height: "100%", class: `k${kinds.findIndex(([k]) => k === key)}` }));
    return make("span", {}, square, `${name}${after(key)}`);
  }));
}

// ---- the schedule: boxes [rank, micro-batch, virtual stage, start, end] by kind of pass

function showTimeline(timeline, error) {
  drawn = timeline;
  const kinds = PASSES.map((name) => [name, name]), node = $("timeline");
  $("legend").replaceChildren(...(drawn ? [legendOf(kinds, kinds.filter(([name]) => drawn.blocks[name]))] : [error?.message ?? ""]));
  node.hidden = !drawn;
  if (!drawn) return;
  node.setAttribute("aria-label", `${drawn.schedule}: ${drawn.ranks} ranks, ${seconds(drawn.length_s)}; + and − zoom, arrows move`);
  chart(node, Math.min(24, 4 + 1.6 * drawn.ranks), {
    legend: { show: false }, series: [{}, {}], hooks: { draw: [drawPasses], setCursor: [showMoment] },
    cursor: { y: false, points: { show: false } }, padding: [rem() / 2, 2 * rem(), 0, 0],
    scales: { x: { time: false }, y: { dir: -1, range: [-0.5, drawn.ranks - 0.5] } },
    axes: [axis({ values: (_, times) => times.map(seconds), grid: { show: false } }), axis({ label: "rank", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500], space: rem(), grid: { show: false } })],
  }, [[0, drawn.length_s], [null, null]]);
}

function drawPasses({ ctx, scales: { x }, valToPos }) {
  ctx.save();
  for (const [kind, blocks] of Object.entries(drawn.blocks)) {
    ctx.fillStyle = colour(`c${PASSES.indexOf(kind)}`);
    for (const [rank, micro, , start, end] of blocks.filter((block) => block[3] < x.max && block[4] > x.min)) {
      const from = valToPos(Math.max(start, x.min), "x", true), top = valToPos(rank - 0.44, "y", true);
      ctx.globalAlpha = micro % 2 ? 0.72 : 1;
      ctx.fillRect(from, top, valToPos(Math.min(end, x.max), "x", true) - from, valToPos(rank + 0.44, "y", true) - top);
    }
  }
  ctx.restore();
}

function showMoment({ cursor: { left, top }, posToVal }) {
  const rank = Math.round(posToVal(top, "y")), time = posToVal(left, "x");
  const under = Object.entries(drawn.blocks).flatMap(([kind, blocks]) => blocks.filter((b) => b[0] === rank && b[3] <= time && time < b[4]).map((b) => [kind, b]))[0];
  const words = under ? `micro-batch ${under[1][1]}, ${under[0]}, ${seconds(under[1][4] - under[1][3])}` : "idle";
  $("moment").textContent = left < 0 ? "" : `rank ${rank}, ${words}`;
}

function zoom(how, centre = 0.5) { // dragging zooms, too, and a double click shows all: uPlot does both
  if (!drawn) return;
  const { chart } = $("timeline"), { min, max } = chart.scales.x, width = max - min;
  const factor = { in: 0.5, out: 2, all: Infinity }[how] ?? 1, shift = { left: -0.25, right: 0.25 }[how] ?? 0;
  const wide = Math.min(Math.max(width * factor, drawn.length_s / 2000), drawn.length_s);
  const from = Math.min(Math.max(min + centre * (width - wide) + shift * width, 0), drawn.length_s - wide);
  chart.setScale("x", { min: from, max: from + wide });
}

for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => zoom(button.dataset.zoom));
$("timeline").addEventListener("keydown", (event) => {
  const how = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" }[event.key];
  if (how) { event.preventDefault(); zoom(how); }
});
$("timeline").addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return; // the page scrolls
  event.preventDefault();
  const { cursor, over } = $("timeline").chart;
  zoom(event.deltaY < 0 ? "in" : "out", cursor.left / over.clientWidth);
}, { passive: false });

// ---- the search: server-sent events of one answer

const sought = (q) => JSON.stringify([q.model, q.config, q.profile, q.cluster, q.sequence, price?.strategy.global_batch, price?.strategy.precision, q.runtime, ...TRAINING.map((name) => q[name])]);

async function search() {
  const question = { ...state }, key = sought(question), said = (text) => { $("search").hidden = false; $("search").replaceChildren(make("p", {}, text)); };
  $("find").disabled = true;
  said("searching …");
  try {
    if (fixed) return take(await ask("best", { model: state.model, cluster: state.cluster }), question, key);
    const headers = { "Content-Type": "application/json" };
    const reply = await fetch("api/search", { method: "POST", headers, body: JSON.stringify(question) });
    if (!reply.ok) throw new Error((await reply.json()).sentence);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = "", piece = await reader.read(); !piece.done; piece = await reader.read()) {
      text += piece.value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) {
        const [, kind, data] = event.match(/^event: (\w+)\ndata: (.*)$/), content = JSON.parse(data);
        if (kind === "progress") said(`${content.what} …`);
        if (kind === "error") throw new Error(content.sentence);
        if (kind === "best") take(content, question, key);
      }
    }
  } catch (error) { said(error.message); } finally { $("find").disabled = false; }
}

function take(found, question, key) {
  const strategy = found.strategy;
  best = { ...found, key };
  state = { ...question };
  for (const [field] of LANES) set(field, strategy[field]);
  if (strategy.vp === 1) delete state.vp;
  if (strategy.pp * strategy.vp === 1) delete state.schedule;
  for (const name of EXACT) set(name, strategy[name]);
  set("recompute", strategy.recompute);
  set("recompute_blocks", strategy.recompute_blocks);
  state.global_batch = strategy.global_batch;
  if (found.question) state = { ...found.question };
  changed();
}

// How far the choice is from the best known, and from what is proven of all.
function showDistance() {
  if (!best) return;
  const lines = [];
  if (sought(state) !== best.key) lines.push("The best is of another question: find it again.");
  else {
    const known = Math.min(best.step_s, price.verdict === "fits" ? price.step_s : Infinity), further = price.step_s / known - 1;
    lines.push(further > 5e-4 ? `This choice takes ${percent(further)} longer than the best known, ${seconds(known)}.` : "This is the best known.");
    if (best.bound_s) lines.push(`It is proven that no strategy is shorter than ${seconds(best.bound_s)}: this one takes ${percent(Math.max(0, price.step_s / best.bound_s - 1))} longer.`);
    if (further > 5e-4) lines.push(make("button", { type: "button", click: () => take(best, state, best.key) }, "Take the best again"));
  }
  $("search").hidden = false;
  $("search").replaceChildren(...lines.map((line) => make("p", {}, line)));
  showFront();
}

// ---- side by side, sizes, copies

function showCompared() {
  const rows = {
    step: (p) => seconds(p.step_s), "tokens/s a device": (p) => figures(p.tokens_per_s_per_device), MFU: (p) => percent(p.mfu),
    memory: (p) => `${bytes(p.peak_memory_bytes)}, ${p.verdict}`, strategy: (p) => `${p.model} on ${p.cluster}: ${p.words}`,
  };
  const priced = compared.filter((entry) => entry.price);
  const shortest = Math.min(...priced.map((entry) => entry.price.step_s));
  $("compared").hidden = !priced.length;
  const heads = priced.map((entry, i) => make("th", { scope: "col" }, `${i + 1}${entry.price.step_s === shortest ? ", shortest" : ""}`));
  const body = Object.entries(rows).map(([name, text]) => make("tr", {}, make("th", { scope: "row" }, name), ...priced.map((entry) => make("td", {}, text(entry.price)))));
  const buttons = priced.map((entry, i) => make("td", {},
    make("button", { type: "button", "aria-label": `Take ${i + 1}`, click: () => { state = { ...entry.question }; changed(); } }, "Take"), " ",
    make("button", { type: "button", "aria-label": `Remove ${i + 1}`, click: () => { compared = compared.filter((other) => other !== entry); writeAddress(); showCompared(); } }, "Remove")));
  $("compared").lastElementChild.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, make("td"), ...heads)), make("tbody", {}, ...body, make("tr", {}, make("td"), ...buttons))));
  $("keep").disabled = compared.length >= MOST_COMPARED;
}

// The same strategy on more and fewer devices of the kind, data parallelism taking them; the batch stays.
async function sweep() {
  const kind = price.device.split(",")[0], batch = price.strategy.global_batch, shared = price.devices / price.strategy.dp;
  const counts = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048].filter((count) => count % shared === 0 && batch % (count / shared * price.strategy.micro_batch) === 0);
  const points = [];
  for (const devices of counts)
    await ask("price", { ...state, cluster: `${devices}x${kind}`, global_batch: batch }).then((answer) => points.push({ place: devices, label: `${devices}`, name: `${devices} devices`, ...answer }), () => {});
  $("sizes").hidden = false;
  $("sizes").children[1].hidden = points.length < 2;
  if (points.length > 1) plot($("sizes").children[1], "devices", points);
  else $("sizes").lastElementChild.textContent = "No other number of devices takes this strategy and batch.";
}

// The best strategies with less and less memory of a device, the emptiest first.
function showFront() {
  const points = (best.memory ?? []).map((p) => ({ ...p, place: p.peak_memory_bytes / 1e9, label: figures(p.peak_memory_bytes / 1e9), name: bytes(p.peak_memory_bytes) })).reverse();
  $("front").hidden = points.length < 2 || sought(state) !== best.key;
  if (!$("front").hidden) plot($("front").children[1], "GB of a device", points);
}

async function copy(target) {
  try {
    const { files, notes } = await ask(`copy/${target}`, state);
    const text = Object.entries(files).map(([ending, content]) => ending ? `# ---- the file beside it, ${ending}\n${content}` : content).join("\n");
    $("copied").hidden = false;
    $("copied").textContent = text;
    await put(text);
    $("notes").textContent = [`Copied for ${target}.`, ...notes].join(" ");
  } catch (error) {
    $("notes").textContent = error.message;
    $("copied").hidden = true;
  }
}

const put = (text) => navigator.clipboard ? navigator.clipboard.writeText(text).catch(() => {}) : Promise.resolve();

$("find").addEventListener("click", search);
$("sweep").addEventListener("click", sweep);
$("link").addEventListener("click", () => put(location.href).then(() => { $("notes").textContent = "Copied the link."; }));
$("keep").addEventListener("click", () => { compared.push({ question: { ...state }, price }); writeAddress(); showCompared(); });
addEventListener("hashchange", readAddress);

// ---- begin

$("lanes").append(...LANES.map(([field, meaning]) => lane(field, meaning)));
const [models, clusters] = await Promise.all(["models", "clusters"].map((name) => fetch(`api/${name}`).then((reply) => reply.json())));
if (clusters.static) {
  fixed = { ...clusters.static, clusters: clusters.clusters.map(({ name }) => name) };
  document.body.classList.add("fixed");
  $("fixed").hidden = false;
  $("fixed").prepend(`Nothing is computed here: this page has the answers for ${fixed.models.join(", ")} on ${fixed.clusters.join(", ")}, `
    + `${figures(fixed.strategies)} strategies in ${bytes(fixed.bytes)}, and offers no other value. `);
}
$("models").append(...models.map((model) => make("option", { value: model.name, label: `${figures(model.parameters / 1e9)} B parameters` })));
$("clusters").append(...clusters.clusters.map(({ name, devices, kinds }) => make("option", { value: name, label: kinds.length ? `${devices} × ${kinds.join(", ")}` : name })));
$("clusters").append(...clusters.devices.flatMap((kind) => [8, 32, 128, 512].map((count) => make("option", { value: `${count}x${kind}` }))));
form.elements.runtime.append(...clusters.runtimes.map((name) => make("option", { value: name }, name)));
$("targets").append(...[...clusters.copies, ...Object.keys(clusters.targets)].map((target) => make("button", { type: "button", title: clusters.targets[target], click: () => copy(target) }, target)));
readAddress();
