/* What the pages do by themselves: live parts, the theme, plots. Everything else works without it. */
"use strict";
(() => {
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  /* Live parts ask again every few seconds, unless nobody looks; htmx fetches and morphs, so focus stays where it is. */
  function live() {
    for (const part of $$("[data-live]")) {
      const every = Number(part.dataset.live) * 1000;
      let asked = Date.now();
      setInterval(() => {
        if (document.hidden || Date.now() - asked < every || part.contains(document.activeElement?.closest("details[open]"))) return;
        asked = Date.now();
        htmx.trigger(part, "tick");
      }, 250);
    }
    const stale = (is) => document.documentElement.classList.toggle("is-stale", is);
    document.addEventListener("htmx:error", () => stale(true));
    document.addEventListener("htmx:response:error", () => stale(true));
    document.addEventListener("htmx:after:swap", () => stale(false));
  }

  /* A log that grows stays at its end, unless it was scrolled up to be read. */
  const atEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  function follow() {
    let held = new Set();
    const down = () => $$("[data-follow]").forEach((log) => { if (!held.has(log.id)) log.scrollTop = log.scrollHeight; });
    document.addEventListener("htmx:before:swap", () => { held = new Set($$("[data-follow]").filter((log) => !atEnd(log)).map((log) => log.id)); });
    document.addEventListener("htmx:after:swap", down);
    down();
  }

  /* Text goes to the clipboard as it is shown; without a secure context (http elsewhere than on this machine) by selection. */
  async function copied(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text;
    area.className = "hidden";
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("the browser refused");
  }
  function copies() {
    const show = () => $$("button.copy[hidden]").forEach((button) => { button.hidden = false; });
    document.addEventListener("click", async (event) => {
      const button = event.target.closest?.("button.copy"), from = button && document.getElementById(button.dataset.copy);
      if (!from) return;
      const lines = $$(".l", from), label = button.firstChild, said = label.data;
      const done = await copied(lines.length ? lines.map((line) => line.textContent).join("\n") + "\n" : from.textContent).then(() => "Copied", () => "Not copied");
      label.data = done;
      setTimeout(() => { label.data = said; }, 1500);
    });
    document.addEventListener("htmx:after:swap", show);
    show();
  }

  /* A filter that is chosen applies at once; without scripts its button does. */
  function filters() {
    for (const form of $$("form.filters[role=search]")) form.addEventListener("change", (event) => { if (event.target.matches("select")) form.requestSubmit(); });
  }

  function theme() {
    const button = document.getElementById("theme");
    if (!button) return;
    const order = ["system", "dark", "light"];
    const now = () => document.documentElement.dataset.theme || "system";
    const say = () => { button.textContent = now(); button.setAttribute("aria-label", `Colours: ${now()}. Change`); };
    button.addEventListener("click", () => {
      const next = order[(order.indexOf(now()) + 1) % order.length];
      if (next === "system") { delete document.documentElement.dataset.theme; localStorage.removeItem("theme"); }
      else { document.documentElement.dataset.theme = next; localStorage.setItem("theme", next); }
      say();
      drawAll();
    });
    button.hidden = false;
    say();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  }

  /* A canvas knows no CSS variables: an element resolves them. */
  function palette(host) {
    const probe = host.appendChild(document.createElement("i"));
    const read = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
    const found = Object.fromEntries(["ink", "soft", "line", "faint", "accent", "good", "bad", "warn", "cheat", "void", "surface"].map((n) => [n, read(n)]));
    probe.remove();
    return found;
  }
  const SHADES = { correct: "good", incorrect: "bad", cheat: "cheat", voided: "void" };
  const sig = (v) => (v == null ? "" : Number(v.toPrecision(3)).toString());
  const duration = (s) => { const [size, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]].find(([n]) => s >= 0.9995 * n) || [1e-9, "ns"]; return `${sig(s / size)} ${unit}`; };
  const axis = (c, label, values, size) => ({
    stroke: c.soft, grid: { stroke: c.faint, width: 1 }, ticks: { stroke: c.line, width: 1, size: 4 }, font: "11px system-ui, sans-serif",
    filter: (_, splits) => splits, label, labelFont: "11px system-ui, sans-serif", labelSize: 16, labelGap: 0, values, size, gap: 4,
  });
  /* Ends of an axis at round numbers, so that ticks bracket the data. */
  const STEPS = [1, 1.5, 2, 3, 5, 7];
  const round = (v, up) => {
    const power = 10 ** Math.floor(Math.log10(v)), all = [...STEPS.map((m) => m * power), 10 * power];
    return up ? all.find((t) => t >= v * 0.999999) : all.reverse().find((t) => t <= v * 1.000001);
  };
  const bracketed = (low, high) => () => {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) for (const m of STEPS) {
      const tick = m * 10 ** e;
      if (tick >= low * 0.999999 && tick <= high * 1.000001) found.push(tick);
    }
    const inner = found.slice(1, -1), every = Math.ceil(inner.length / 8);
    return found.length < 3 ? found : [found[0], ...inner.filter((t, i) => (every === 1 ? true : every === 2 ? isRound(t) : Math.abs(Math.log10(t) % 1) < 1e-9)), found.at(-1)];
  };
  const isRound = (v) => [1, 2, 5].some((m) => { const e = Math.log10(v / m); return Math.abs(e - Math.round(e)) < 1e-9; });

  /* Best so far as a staircase, every attempt as a dot; what failed lies on a line below. */
  function course(host, data, readout) {
    const c = palette(host), points = data.points, good = points.filter((p) => p.outcome === "correct" && p.speedup);
    const one = data.time_axis && good.length ? [] : [1], told = data.time_axis ? (v) => duration(1 / v) : (v) => `×${sig(v)}`;
    const bottom = round(Math.min(...one, ...good.map((p) => p.low || p.speedup)), false), top = round(Math.max(...one, ...good.map((p) => p.high || p.speedup)), true);
    const high = top > bottom ? top : bottom * 2, low = bottom * (bottom / high) ** 0.14;
    const at = points.map((p) => (p.outcome === "correct" && p.speedup ? p.speedup : low * (bottom / low) ** 0.5));
    const whisker = (u, p, x, r) => {
      const { ctx } = u, top = u.valToPos(p.high, "y", true), end = u.valToPos(p.low, "y", true);
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, end);
      for (const y of [top, end]) { ctx.moveTo(x - 1.5 * r, y); ctx.lineTo(x + 1.5 * r, y); }
      ctx.strokeStyle = c.soft;
      ctx.lineWidth = 1.2 * devicePixelRatio;
      ctx.stroke();
    };
    const dots = (u) => {
      const { ctx } = u, r = Math.max(2, Math.min(4.5, 900 / points.length)) * devicePixelRatio;
      points.forEach((p, i) => {
        const x = u.valToPos(p.number, "x", true), y = u.valToPos(at[i], "y", true), shade = c[SHADES[p.outcome] || "warn"];
        if (p.outcome === "correct" && p.low && p.high) whisker(u, p, x, r);
        ctx.beginPath();
        ctx.arc(x, y, r, 0, 7);
        ctx.fillStyle = p.outcome === "correct" ? shade : c.surface;
        ctx.strokeStyle = shade;
        ctx.lineWidth = 1.5 * devicePixelRatio;
        ctx.fill();
        ctx.stroke();
      });
    };
    const say = (i) => {
      const p = points[i];
      readout.replaceChildren();
      if (!p) return;
      const range = p.low && p.high ? ` (95 % ${told(p.low)} to ${told(p.high)})` : "";
      const speed = p.speedup ? ` ${told(p.speedup)}${range}` : "", trust = p.trust ? `, ${p.trust.split(":")[0]}` : "",
        best = p.best ? `, best so far ${told(p.best)}${p.best_trust === "confirmed" ? "" : ` (${p.best_trust?.split(":")[0] || "trust unknown"})`}` : "";
      readout.append(`#${p.number} ${p.outcome}${speed}${trust}${best}${p.said ? ` — ${p.said}` : ""}`);
      const link = readout.appendChild(document.createElement("a"));
      link.href = p.href;
      link.textContent = p.attempt_id;
    };
    const u = new uPlot({
      ...sizes(host), legend: { show: false }, cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      scales: { x: { time: false, range: (_, a, b) => [a - 0.5, Math.max(b, a + 1) + 0.5] }, y: { distr: 3, range: [low, high] } },
      axes: [{ ...axis(c, "attempt number", (_, v) => v, 24), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axis(c, data.time_axis || "speed-up against the reference", (_, v) => v.map(told), data.time_axis ? 56 : 44), splits: bracketed(bottom, high) }],
      series: [{}, { stroke: c.accent, width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }, { stroke: "transparent", points: { show: false } }],
      hooks: { draw: [dots], setCursor: [(u) => u.cursor.idx != null && say(u.cursor.idx)] },
    }, [points.map((p) => p.number), points.map((p) => p.best), at], host);
    const show = (i) => { u.setCursor({ left: u.valToPos(points[i].number, "x"), top: 10 }); say(i); };
    say(points.length - 1);
    return { u, count: points.length, show, open: (i) => { location.href = points[i].href; } };
  }

  /* Roofs of each level of memory up to the compute peak, the kernels below them. */
  function roofline(host, data, readout) {
    const c = palette(host), shades = [c.accent, c.good, c.warn, c.cheat, c.bad, c.ink], kernels = data.kernels, roofs = data.roofs;
    const dots = kernels.flatMap((k, n) => k.levels.map((l) => ({ k, l, shade: shades[n % shades.length] })));
    const xs = [...dots.map((d) => d.l.intensity_flop_b), ...roofs.map((r) => (r.peak_tflop_s * 1e3) / r.gb_s)];
    const ys = [...kernels.map((k) => k.tflop_s), ...kernels.map((k) => k.peak_tflop_s)];
    const x0 = round(Math.min(...xs) / 2.5, false), x1 = round(Math.max(...xs) * 2.5, true), y0 = round(Math.min(...ys) / 2.5, false), y1 = round(Math.max(...ys) * 1.8, true);
    const plain = (_, v) => v.map(sig);
    const ridges = roofs.map((r) => (r.peak_tflop_s * 1e3) / r.gb_s), grid = [x0, ...ridges, x1].sort((a, b) => a - b);
    const draw = (u) => {
      const { ctx } = u, px = devicePixelRatio;
      ctx.font = `${11 * px}px system-ui, sans-serif`;
      for (const d of dots) {
        ctx.beginPath();
        ctx.arc(u.valToPos(d.l.intensity_flop_b, "x", true), u.valToPos(d.k.tflop_s, "y", true), 5 * px, 0, 7);
        ctx.fillStyle = d.shade;
        ctx.fill();
      }
      ctx.fillStyle = c.soft;
      const fastest = Math.max(...roofs.map((r) => r.gb_s));
      roofs.forEach((r, n) => {
        const above = r.gb_s === fastest && roofs.length > 1, side = above ? -8 : 8, at = x0 * (x1 / x0) ** (0.04 + 0.1 * n);
        const said = `${r.level} ${sig(r.gb_s / 1e3)} TB/s`, wide = ctx.measureText(said).width, x = u.valToPos(at, "x", true) + side * px;
        const left = above ? Math.max(x - wide, u.bbox.left + 4 * px) : x, under = above ? u.posToVal((left + wide - u.bbox.left) / px, "x") : at;
        ctx.textAlign = "left";
        ctx.fillText(said, left, u.valToPos(Math.min(r.peak_tflop_s, (under * r.gb_s) / 1e3), "y", true) + (above ? -5 : 14) * px);
      });
      ctx.textAlign = "right";
      if (roofs.length) ctx.fillText(`${kernels[0].pipe} ${sig(roofs[0].peak_tflop_s)} TFLOP/s`, u.bbox.left + u.bbox.width - 6 * px, u.valToPos(roofs[0].peak_tflop_s, "y", true) - 7 * px);
    };
    const say = (i) => {
      const d = dots[i];
      readout.textContent = d ? `${d.k.kernel}: ${sig(d.k.tflop_s)} TFLOP/s ${d.k.pipe}, ${sig(d.l.intensity_flop_b)} FLOP/B at ${d.l.level}, ${sig(d.l.of_roof_percent)} % of that roof` : "";
    };
    const nearest = (u) => {
      if (u.cursor.left == null || u.cursor.left < 0) return;
      const far = (d) => Math.hypot(u.valToPos(d.l.intensity_flop_b, "x") - u.cursor.left, u.valToPos(d.k.tflop_s, "y") - u.cursor.top);
      say(dots.indexOf(dots.reduce((a, b) => (far(b) < far(a) ? b : a))));
    };
    const u = new uPlot({
      ...sizes(host), legend: { show: false }, cursor: { points: { show: false }, drag: { x: false, y: false } },
      scales: { x: { time: false, distr: 3, range: [x0, x1] }, y: { distr: 3, range: [y0, y1] } },
      axes: [{ ...axis(c, "arithmetic intensity, FLOP per byte", plain, 24), splits: bracketed(x0, x1) }, { ...axis(c, "performance, TFLOP/s", plain, 44), splits: bracketed(y0, y1) }],
      series: [{}, ...roofs.map(() => ({ stroke: c.ink, width: 1.5, points: { show: false } }))],
      hooks: { draw: [draw], setCursor: [nearest] },
    }, [grid, ...roofs.map((r) => grid.map((x) => Math.min(r.peak_tflop_s, (x * r.gb_s) / 1e3)))], host);
    say(0);
    return { u, count: dots.length, show: say, open: () => {} };
  }

  const KINDS = { course, roofline };
  const sizes = (host) => ({ width: host.clientWidth, height: host.clientHeight });
  const drawn = new Map();

  async function fetched(figure) {
    const answer = await fetch(figure.dataset.src, { headers: { accept: "application/json" } });
    if (!answer.ok) throw new Error(`${answer.status}`);
    return answer.json();
  }

  function draw(figure) {
    const host = figure.querySelector(".chart"), readout = figure.querySelector(".readout"), had = drawn.get(figure);
    if (!had?.data) return;
    had.plot?.u.destroy();
    had.plot = KINDS[figure.dataset.plot](host, had.data, readout);
  }
  const drawAll = () => drawn.forEach((_, figure) => draw(figure));

  /* A plot that grows while agents work; one that is being walked by keyboard stays as it is. */
  async function again(figure) {
    const had = drawn.get(figure);
    if (document.hidden || !had.data || document.activeElement === figure) return;
    const data = await fetched(figure).catch(() => null);
    if (data && JSON.stringify(data) !== JSON.stringify(had.data)) { had.data = data; draw(figure); }
  }

  function steer(figure) {
    let at = -1;
    figure.addEventListener("keydown", (event) => {
      const { plot } = drawn.get(figure), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!plot || !plot.count || event.target !== figure) return;
      if (step) at = at < 0 ? (step > 0 ? 0 : plot.count - 1) : Math.min(plot.count - 1, Math.max(0, at + step));
      else if (event.key === "Home") at = 0;
      else if (event.key === "End") at = plot.count - 1;
      else if (event.key === "Enter" && at >= 0) return plot.open(at);
      else return;
      event.preventDefault();
      plot.show(at);
    });
  }

  async function plots() {
    for (const figure of $$("[data-plot]")) {
      drawn.set(figure, {});
      steer(figure);
      fetched(figure).then((data) => { drawn.get(figure).data = data; draw(figure); figure.dataset.ready = "yes"; })
        .catch((error) => { figure.querySelector(".readout").textContent = `The plot's data did not come (${error.message}).`; });
      if (figure.dataset.again) setInterval(() => again(figure), Number(figure.dataset.again) * 1000);
      new ResizeObserver(() => { const u = drawn.get(figure).plot?.u; if (u) u.setSize(sizes(figure.querySelector(".chart"))); }).observe(figure);
    }
  }

  addEventListener("DOMContentLoaded", () => { theme(); filters(); copies(); follow(); plots(); if (window.htmx) live(); });
})();
