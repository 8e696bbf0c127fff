"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const preference = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = [...document.querySelectorAll(".plot")];
  const paper = { width: 680, height: 330 }; // pixels of a printed figure, two of which share a page
  const heights = new Map();

  const isDark = () => (root.dataset.theme || (preference.matches ? "dark" : "light")) === "dark";

  const colours = () => {
    const style = getComputedStyle(root);
    const value = (name) => style.getPropertyValue(name).trim();
    return { "font.color": value("--ink"), "hoverlabel.bgcolor": value("--panel"), "hoverlabel.font.color": value("--ink"),
             "hoverlabel.bordercolor": value("--edge"), "modebar.color": value("--soft"), "modebar.activecolor": value("--ink"),
             "modebar.bgcolor": "rgba(0,0,0,0)" };
  };

  const label = () => {
    const dark = isDark();
    button.textContent = dark ? "Light theme" : "Dark theme";
    button.setAttribute("aria-pressed", String(dark));
  };

  const paint = (size = () => ({})) => {
    label();
    for (const plot of plots) Plotly.relayout(plot, { ...colours(), ...size(plot) });
  };

  for (const plot of plots) {
    const { data, layout } = JSON.parse(document.getElementById(plot.dataset.figure).textContent);
    const names = data.filter((trace) => trace.showlegend !== false && trace.type === "scatter").length;
    if (plot.clientWidth < 520) layout.height += 15 * Math.max(0, names - 3); // a narrow figure has one name a line
    heights.set(plot, layout.height);
    Plotly.newPlot(plot, data, layout, { responsive: true, displaylogo: false, typesetMath: false,
      modeBarButtons: [["toImage", "resetScale2d"]] });
  }
  paint();

  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    paint();
  });
  preference.addEventListener("change", () => paint());

  let before;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    paint((plot) => ({ width: paper.width, height: Math.min(paper.height, heights.get(plot)) }));
  });
  window.addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    paint((plot) => ({ width: null, autosize: true, height: heights.get(plot) }));
  });

  for (const button of document.querySelectorAll("button.switch")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const figure of document.querySelectorAll("figure[data-of]")) {
        if (figure.dataset.of !== button.value) continue;
        figure.hidden = !shown;
        if (shown) Plotly.Plots.resize(figure.querySelector(".plot"));
      }
      for (const plot of plots) {
        const places = plot.data.map((trace, place) => (trace.meta === button.value ? place : -1)).filter((place) => place >= 0);
        if (places.length) Plotly.restyle(plot, { visible: shown ? true : "legendonly" }, places);
      }
    });
  }

  for (const copy of document.querySelectorAll("button[data-copy]")) {
    copy.addEventListener("click", async () => {
      const source = document.getElementById(copy.dataset.copy);
      let done = true;
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        getSelection().selectAllChildren(source);
        done = document.execCommand("copy");
      }
      copy.textContent = done ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { copy.textContent = "Copy"; }, 2000);
    });
  }
})();
