"use strict";
// The report page: gallery with filters, viewer with zoom, samples by round. All texts are set as
// text, never as HTML, so that names from a dataset cannot become code.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const SHADES = 7, PAGE = 48, BEST = 6;
  const LAYERS = { masks: "m", boxes: "b", truth: "t", seeds: "s", regions: "r", edges: "e", labels: "l" };
  const HIDDEN = ["boxes", "seeds", "regions", "edges"];
  const root = document.documentElement;
  const find = (id) => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);
  const percent = (value) => `${Math.round(100 * value)} %`;

  function element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  function vector(tag, attributes = {}, ...children) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  // ---- theme

  function setTheme(name) {
    root.dataset.theme = name;
    try { localStorage.setItem("annocoin-theme", name); } catch { /* not from every disk */ }
  }
  let theme = null;
  try { theme = localStorage.getItem("annocoin-theme"); } catch { /* as above */ }
  root.dataset.theme = theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  find("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));

  // ---- outlines, in the page or in scripts beside it

  const loading = new Map();
  window.annocoinOutlines = (address, details) => loading.get(address).resolve(details);

  function detailOf(set, index) {
    if (!set.chunks.length) return Promise.resolve(set.details[index]);
    const address = set.chunks[Math.floor(index / set.chunk)];
    if (!loading.has(address)) {
      const entry = {};
      entry.promise = new Promise((resolve) => { entry.resolve = resolve; });
      loading.set(address, entry);
      document.head.append(element("script", { src: address }));
    }
    return loading.get(address).promise.then((details) => details[index % set.chunk]);
  }

  // ---- drawing

  const group = (name, nodes) => vector("g", { class: `layer-${name}` }, ...nodes);
  const masks = (paths, shades) => group("masks", paths.map((d, i) => vector("path", { d, class: `i${(shades ? shades[i] : i) % SHADES}` })));
  const rectangle = ([x0, y0, x1, y1], kind) => vector("rect", { x: x0, y: y0, width: x1 - x0, height: y1 - y0, class: kind });

  function layers(row, detail) {
    const size = Math.max(row.w, row.h), arm = size / 45;
    const nodes = [];
    if (detail.e) nodes.push(group("edges", [vector("image", { href: detail.e, width: row.w, height: row.h, preserveAspectRatio: "none" })]));
    nodes.push(masks(detail.m));
    nodes.push(group("boxes", detail.b.map((box, i) => rectangle(box, `i${i % SHADES}`))));
    if (detail.r) nodes.push(group("regions", detail.r.map((d) => vector("path", { d }))));
    if (detail.t) nodes.push(group("truth", detail.t.map(([, d]) => vector("path", { d }))));
    nodes.push(group("labels", (detail.a || []).flatMap(([, box, point]) => [
      ...(box ? [rectangle(box, "")] : []),
      ...(point ? [vector("circle", { cx: point[0], cy: point[1], r: arm / 2 })] : []),
    ])));
    if (detail.s) nodes.push(group("seeds", detail.s.flatMap(([x, y]) => {
      const d = `M${x - arm} ${y}H${x + arm}M${x} ${y - arm}V${y + arm}`;
      return [vector("path", { d }), vector("path", { d })];
    })));
    return nodes;
  }

  const names = (row) => [...new Set(row.c)].map((label) => data.classes[label - 1]).join(", ") || "nothing";
  const describe = (row) => `${row.id}: ${names(row)}`;

  function picture(row, nodes, ratio) {
    const box = element("span", { class: "picture" });
    if (ratio) box.style.aspectRatio = `${row.w} / ${row.h}`;
    if (row.p) box.append(element("img", { src: row.p, alt: describe(row), loading: "lazy", decoding: "async" }));
    box.append(vector("svg", { viewBox: `0 0 ${row.w} ${row.h}`, "aria-hidden": "true" }, ...nodes));
    return box;
  }

  function panel(row, nodes, text, kind = "") {
    return element("figure", { class: `panel ${kind}` }, picture(row, nodes, true), element("figcaption", {}, text));
  }

  function tile(set, index, open) {
    const row = set.rows[index];
    const button = element("button", { type: "button", class: "tile", "data-index": index, title: row.f || row.id });
    const frame = picture(row, [], false);
    const low = row.v.length ? `${set.measure} ${Math.min(...row.v).toFixed(2)}` : "no instance";
    const match = row.q === null ? "" : ` · IoU ${row.q.toFixed(2)}`;
    button.append(frame, element("span", { class: "caption" }, element("b", {}, row.id), `${names(row)} · ${low}${match}`));
    detailOf(set, index).then((detail) => frame.querySelector("svg").append(...layers(row, detail)));
    button.addEventListener("click", () => open(index));
    return button;
  }

  // ---- samples and predictions by round

  function showRounds() {
    const slider = find("round"), first = find("first-round"), target = find("round-images");
    const rowOf = new Map(data.sets[0].rows.map((row) => [row.id, row]));

    function strip(row, round) {
      const figures = [];
      if (round.prediction) {
        const shown = round.prediction.m.length ? "" : " (none)";
        figures.push(panel(row, [masks(round.prediction.m)], `${round.name}: prediction${shown}`, "prediction"));
      }
      (round.k || []).forEach((members, k) => {
        const paths = members.map((i) => round.m[i]);
        const kind = k === round.consensus ? "consensus" : "";
        figures.push(panel(row, [masks(paths, members)], `sample ${k + 1}`, kind));
      });
      if (!round.k) figures.push(element("p", { class: "note" }, `${round.name} did not use this image`));
      return element("div", { class: "strip", tabindex: "0", role: "group", "aria-label": `${row.id}, ${round.name}` }, ...figures);
    }

    function draw() {
      const number = Number(slider.value);
      find("round-name").textContent = data.rounds[0].rounds[number].name;
      target.replaceChildren(...data.rounds.map((image) => {
        const row = rowOf.get(image.id);
        const strips = first && first.checked && number > 0 ? [strip(row, image.rounds[0])] : [];
        strips.push(strip(row, image.rounds[number]));
        return element("article", { class: "round-image" }, element("h3", {}, `${image.id}: ${names(row)}`), ...strips);
      }));
    }
    slider.addEventListener("input", draw);
    if (first) first.addEventListener("change", draw);
    draw();
  }

  // ---- layers

  function layerSwitches(target, available) {
    for (const layer of Object.keys(LAYERS).filter((name) => available.has(name))) {
      const box = element("input", { type: "checkbox", "data-layer": layer, "aria-keyshortcuts": LAYERS[layer] });
      box.checked = !document.body.classList.contains(`hide-${layer}`);
      box.addEventListener("change", () => setLayer(layer, box.checked));
      target.append(element("label", {}, box, ` ${layer}`));
    }
  }

  function setLayer(layer, shown) {
    document.body.classList.toggle(`hide-${layer}`, !shown);
    for (const box of document.querySelectorAll(`[data-layer="${layer}"]`)) box.checked = shown;
  }

  // ---- gallery

  function gallery() {
    const grid = find("grid"), form = find("filters");
    let set = data.sets[0], order = [], shown = 0;
    const available = new Set(data.sets.flatMap((each) => each.layers));
    for (const layer of HIDDEN) document.body.classList.add(`hide-${layer}`);
    layerSwitches(find("layers"), available);
    layerSwitches(find("viewer-layers"), available);
    const view = viewer((index) => tileOf(index), () => order);

    data.sets.forEach((each, i) => find("set").append(element("option", { value: i }, each.title)));
    find("set-field").hidden = data.sets.length < 2;

    function fill() {
      const used = new Set(set.rows.flatMap((row) => row.c));
      const counts = new Map();
      for (const row of set.rows) for (const label of new Set(row.c)) counts.set(label, (counts.get(label) || 0) + 1);
      find("class").replaceChildren(element("option", { value: 0 }, "all"), ...data.classes.flatMap((name, i) =>
        used.has(i + 1) ? [element("option", { value: i + 1 }, `${name} (${counts.get(i + 1)})`)] : []));
      const sorts = [["least", `least ${set.measure} first`], ["most", `most ${set.measure} first`], ["none", "as in the dataset"]];
      if (set.truth) sorts.unshift(["failures", "failures first"]);
      find("sort").replaceChildren(...sorts.map(([value, text]) => element("option", { value }, text)));
      find("sort").value = "none";
      find("measure").textContent = set.measure[0].toUpperCase() + set.measure.slice(1);
      find("iou-field").hidden = !set.truth;
      showClasses();
    }

    const number = (id, fallback) => { const value = parseFloat(find(id).value); return Number.isNaN(value) ? fallback : value; };

    function update() {
      const label = Number(find("class").value), low = number("low", 0), high = number("high", 1);
      const iouLow = number("iou-low", 0), iouHigh = number("iou-high", 1), sort = find("sort").value;
      const open = !label && low <= 0 && high >= 1 && iouLow <= 0 && iouHigh >= 1;
      const key = new Map();
      set.rows.forEach((row, index) => {
        const fits = row.v.filter((value, i) => (!label || row.c[i] === label) && value >= low && value <= high &&
          (!set.truth || !row.u.length || (row.u[i] >= iouLow && row.u[i] <= iouHigh)));
        if (open || fits.length) key.set(index, fits.length ? fits.reduce((a, b) => Math.min(a, b)) : -1);
      });
      order = [...key.keys()];
      if (sort === "least") order.sort((a, b) => key.get(a) - key.get(b));
      if (sort === "most") order.sort((a, b) => key.get(b) - key.get(a));
      if (sort === "failures") order.sort((a, b) => (set.rows[a].q ?? 2) - (set.rows[b].q ?? 2));
      find("count").textContent = `${order.length} of ${set.rows.length} images`;
      grid.replaceChildren();
      shown = 0;
      more();
    }

    function more() {
      const part = order.slice(shown, shown + PAGE);
      grid.append(...part.map((index) => tile(set, index, (i) => view(set, i))));
      shown += part.length;
    }

    function tileOf(index) {
      while (shown < order.length && order.indexOf(index) >= shown) more();
      return grid.querySelector(`[data-index="${index}"]`);
    }

    function showClasses() {
      const best = new Map();
      set.rows.forEach((row, index) => row.c.forEach((label, i) => {
        if (!best.has(label)) best.set(label, new Map());
        best.get(label).set(index, Math.max(row.v[i], best.get(label).get(index) ?? 0));
      }));
      const labels = [...best.keys()].sort((a, b) => a - b);
      find("class-rows").replaceChildren(...labels.map((label) => {
        const top = [...best.get(label)].sort((a, b) => b[1] - a[1]).slice(0, BEST);
        const tiles = top.map(([index]) => tile(set, index, (i) => view(set, i)));
        return element("div", { class: "class-row" }, element("h3", {}, data.classes[label - 1]), element("div", { class: "strip" }, ...tiles));
      }));
    }

    find("set").addEventListener("change", () => { set = data.sets[Number(find("set").value)]; fill(); update(); });
    for (const id of ["class", "sort", "low", "high", "iou-low", "iou-high"]) find(id).addEventListener("input", update);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.querySelector("button[type=reset]").addEventListener("click", (event) => {
      event.preventDefault();
      form.reset(); // at once: its event comes before the controls have their values
      for (const layer of available) setLayer(layer, !HIDDEN.includes(layer));
      set = data.sets[0];
      fill();
      update();
    });
    grid.addEventListener("keydown", (event) => {
      const tiles = [...grid.children], at = tiles.indexOf(document.activeElement);
      const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
      if (!step || at < 0) return;
      if (at + step >= tiles.length) more();
      const next = grid.children[at + step];
      if (next) { next.focus(); event.preventDefault(); }
    });
    new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) more(); }, { rootMargin: "800px" }).observe(find("sentinel"));
    fill();
    update();
  }

  // ---- viewer

  function viewer(tileOf, orderOf) {
    const dialog = find("viewer"), stage = find("stage");
    let set = null, index = 0, box = null, drawing = null;

    function open(newSet, newIndex) {
      set = newSet;
      index = newIndex;
      show();
      if (!dialog.open) dialog.showModal();
    }

    function show() {
      const row = set.rows[index];
      find("viewer-title").textContent = row.f || row.id;
      box = [0, 0, row.w, row.h];
      drawing = vector("svg", { role: "img", "aria-label": describe(row) });
      if (row.p) drawing.append(vector("image", { href: row.p, width: row.w, height: row.h, preserveAspectRatio: "none" }));
      zoom(1);
      stage.replaceChildren(drawing);
      const current = drawing;
      detailOf(set, index).then((detail) => {
        current.append(...layers(row, detail));
        const labels = (detail.a || []).map(([label]) => data.classes[label - 1]);
        find("viewer-labels").textContent = labels.length ? `Weak labels: ${labels.join(", ")}` : "";
      });
      const head = ["", "class", set.measure, ...(row.u.length ? ["IoU"] : [])];
      const lines = row.c.map((label, i) => element("tr", {},
        element("td", {}, element("span", { class: `swatch i${i % SHADES}` })), element("td", {}, data.classes[label - 1]),
        element("td", { class: "number" }, row.v[i].toFixed(2)), ...(row.u.length ? [element("td", { class: "number" }, percent(row.u[i]))] : [])));
      find("viewer-instances").replaceChildren(element("thead", {}, element("tr", {}, ...head.map((text, i) => element("th", { scope: "col", class: i > 1 ? "number" : "" }, text)))), element("tbody", {}, ...lines));
    }

    function zoom(factor, x = 0.5, y = 0.5) {
      const row = set.rows[index];
      const width = Math.min(row.w, Math.max(row.w / 40, box[2] / factor)), height = width * row.h / row.w;
      box = [box[0] + (box[2] - width) * x, box[1] + (box[3] - height) * y, width, height];
      move(0, 0);
    }

    function move(dx, dy) {
      const row = set.rows[index];
      box[0] = Math.min(row.w - box[2], Math.max(0, box[0] + dx));
      box[1] = Math.min(row.h - box[3], Math.max(0, box[1] + dy));
      drawing.setAttribute("viewBox", box.join(" "));
    }

    function go(step) {
      const order = orderOf(), at = order.indexOf(index) + step;
      if (at >= 0 && at < order.length) { index = order[at]; show(); }
    }

    find("previous").addEventListener("click", () => go(-1));
    find("next").addEventListener("click", () => go(1));
    find("zoom-in").addEventListener("click", () => zoom(1.5));
    find("zoom-out").addEventListener("click", () => zoom(1 / 1.5));
    find("close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => { const node = tileOf(index); if (node) node.focus(); });
    dialog.addEventListener("keydown", (event) => {
      const layer = Object.keys(LAYERS).find((name) => LAYERS[name] === event.key);
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "ArrowRight") go(1);
      else if (event.key === "ArrowLeft") go(-1);
      else if (event.key === "+" || event.key === "=") zoom(1.5);
      else if (event.key === "-") zoom(1 / 1.5);
      else if (event.key === "0") zoom(1e-3);
      else if (layer) setLayer(layer, document.body.classList.contains(`hide-${layer}`));
      else return;
      event.preventDefault();
    });
    stage.addEventListener("wheel", (event) => {
      const area = stage.getBoundingClientRect();
      zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, (event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height);
      event.preventDefault();
    }, { passive: false });
    stage.addEventListener("pointerdown", (event) => stage.setPointerCapture(event.pointerId));
    stage.addEventListener("pointermove", (event) => {
      if (!stage.hasPointerCapture(event.pointerId)) return;
      const area = stage.getBoundingClientRect(), scale = Math.max(box[2] / area.width, box[3] / area.height);
      move(-event.movementX * scale, -event.movementY * scale);
    });
    stage.addEventListener("dblclick", () => zoom(1e-3));
    return open;
  }

  // ---- comparison of runs

  function showComparison() {
    const { runs, images } = data.comparison;
    const target = find("comparison");
    for (const row of images) {
      row.c = [];
      const panels = row.runs.map((run, i) => panel(row, [masks(run.m)], `${runs[i]}: ${[...new Set(run.c)].join(", ") || "nothing"}`));
      const line = element("div", { class: "compared" }, ...panels);
      line.style.gridTemplateColumns = `repeat(${runs.length}, minmax(120px, 240px))`;
      target.append(element("h3", {}, row.id), line);
    }
  }

  if (data.sets && data.sets.length) gallery();
  if (data.rounds && data.rounds.length) showRounds();
  if (data.comparison && data.comparison.images.length) showComparison();
})();
