/* Live parts, the dialog and the charts. Without it every page still works: links lead to pages, forms are forms. */
"use strict";
(function () {
  const toggle = document.getElementById("live-toggle");
  const word = document.getElementById("live-word");
  const announcer = document.getElementById("announcer");
  const dialog = document.getElementById("dialog");
  let live = true;
  let opener = null;

  function show(text, lost) {
    if (!toggle) return;
    word.textContent = text;
    toggle.classList.toggle("lost", lost);
  }

  if (toggle) {
    toggle.hidden = false;
    toggle.addEventListener("click", function () {
      live = !live;
      toggle.setAttribute("aria-pressed", String(live));
      show(live ? "Live" : "Paused", false);
    });
  }

  function isPoll(event) {
    return event.target && event.target.id === "live";
  }

  document.addEventListener("htmx:beforeRequest", function (event) {
    if (event.detail.target.id === "dialog-body") opener = event.target;
    // A hidden tab is not looked at, an open dialog must not lose its ground, and a part that was opened stays open.
    const opened = document.querySelector("#live details[open]");
    if (isPoll(event) && (!live || document.hidden || dialog.open || opened)) event.preventDefault();
  });

  // What is here already is not sent again: the mark of the part that is shown goes along with the question.
  let mark = "";
  document.addEventListener("htmx:configRequest", function (event) {
    if (isPoll(event) && mark) event.detail.headers["X-Lapse-Mark"] = mark;
  });
  document.addEventListener("htmx:afterRequest", function (event) {
    if (!isPoll(event) || !event.detail.xhr) return;
    mark = event.detail.xhr.getResponseHeader("X-Lapse-Mark") || "";
    if (event.detail.xhr.status === 204) show("Live", false);
  });

  document.addEventListener("htmx:afterSwap", function (event) {
    if (event.detail.target.id === "dialog-body") {
      if (!dialog.open) dialog.showModal();
      return;
    }
    if (isPoll(event)) {
      show("Live", false);
      const said = document.querySelector("#live [data-announce]");
      if (said && announcer.textContent !== said.textContent) announcer.textContent = said.textContent;
    }
  });

  document.addEventListener("htmx:beforeSwap", function (event) {
    // What went wrong with a question that was asked is said where the answer was expected.
    if (event.detail.isError && event.detail.target.id !== "live") event.detail.shouldSwap = true;
  });

  ["htmx:responseError", "htmx:sendError", "htmx:timeout"].forEach(function (name) {
    document.addEventListener(name, function (event) {
      if (isPoll(event)) show("No answer", true);
    });
  });

  dialog.addEventListener("click", function (event) {
    if (event.target.closest("[data-close]") || event.target === dialog) {
      event.preventDefault();
      dialog.close();
    }
  });
  dialog.addEventListener("close", function () {
    const again = opener && document.getElementById(opener.id);
    if (again) again.focus();
  });

  // A link that looks like a button also obeys the space bar.
  document.addEventListener("keydown", function (event) {
    if (event.key === " " && event.target.matches("a[role=button]")) {
      event.preventDefault();
      event.target.click();
    }
  });

  /* Charts */
  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function short(value) {
    for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
      if (value >= size) return (value / size).toFixed(value / size < 10 && value % size ? 1 : 0) + unit;
    }
    return String(value);
  }

  function day(seconds, options) {
    return new Intl.DateTimeFormat("en-GB", Object.assign({ timeZone: "UTC" }, options)).format(new Date(seconds * 1000));
  }

  function tip(unit) {
    let box;
    return {
      hooks: {
        init: function (plot) {
          box = document.createElement("div");
          box.className = "chart-tip";
          box.hidden = true;
          plot.over.appendChild(box);
          plot.over.addEventListener("mouseleave", function () { box.hidden = true; });
        },
        setCursor: function (plot) {
          const index = plot.cursor.idx;
          if (index === null || index === undefined) { box.hidden = true; return; }
          const at = plot.data[0][index];
          const value = plot.data[1][index];
          box.textContent = day(at, { day: "numeric", month: "short" }) + ": " + value.toLocaleString("en-US") + " " + unit;
          box.hidden = false;
          const left = plot.valToPos(at, "x");
          box.style.left = Math.max(0, Math.min(left - box.offsetWidth / 2, plot.over.clientWidth - box.offsetWidth)) + "px";
          box.style.top = Math.max(0, plot.valToPos(value, "y") - box.offsetHeight - 6) + "px";
        },
      },
    };
  }

  function draw(element) {
    const chart = JSON.parse(element.dataset.chart);
    element.replaceChildren();
    const axis = { stroke: colour("--dim"), font: "11px system-ui, sans-serif", ticks: { show: false } };
    const half = 43200;
    new uPlot({
      width: element.clientWidth,
      height: element.clientHeight,
      tzDate: function (seconds) { return uPlot.tzDate(new Date(seconds * 1000), "UTC"); },
      legend: { show: false },
      padding: [8, 18, 0, 0],
      cursor: { y: false, x: false, points: { show: false }, drag: { x: false, y: false } },
      scales: {
        x: { range: function () { return [chart.x[0] - half, chart.x[chart.x.length - 1] + half]; } },
        y: { range: function (plot, low, high) { return [0, Math.max(1, high * 1.08)]; } },
      },
      axes: [
        Object.assign({
          grid: { show: false }, gap: 6, size: 26,
          splits: function (plot) {
            const step = Math.max(1, Math.ceil(chart.x.length / Math.max(2, Math.floor(plot.width / 90))));
            return chart.x.filter(function (at, index) { return (chart.x.length - 1 - index) % step === 0; });
          },
          values: function (plot, splits) { return splits.map(function (at) { return day(at, { day: "numeric", month: "short" }); }); },
        }, axis),
        Object.assign({
          grid: { stroke: colour("--line"), width: 1 }, gap: 6, size: 46,
          values: function (plot, splits) { return splits.map(short); },
        }, axis),
      ],
      series: [{}, {
        label: chart.unit,
        fill: colour("--" + chart.colour),
        stroke: colour("--" + chart.colour),
        width: 0,
        points: { show: false },
        paths: uPlot.paths.bars({ size: [0.68, 26], radius: 0.18 }),
      }],
      plugins: [tip(chart.unit)],
    }, [chart.x, chart.y], element);
  }

  function drawAll() { document.querySelectorAll("[data-chart]").forEach(draw); }
  let waiting;
  drawAll();
  window.addEventListener("resize", function () { clearTimeout(waiting); waiting = setTimeout(drawAll, 150); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.addEventListener("htmx:afterSwap", function (event) {
    event.detail.target.querySelectorAll("[data-chart]").forEach(draw);
  });
})();
