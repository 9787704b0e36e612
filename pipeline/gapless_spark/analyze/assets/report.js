"use strict";
(async () => {
  const read = (id) => document.getElementById(id).textContent;
  const figures = JSON.parse(read("figures"));
  const places = [...document.querySelectorAll(".chart")];
  if (!places.length) return;
  try {
    const packed = Uint8Array.from(atob(read("plotly")), (c) => c.charCodeAt(0));
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(unpacked).text();
    document.head.append(script);
  } catch (error) {
    for (const place of places) place.textContent = "This browser cannot draw the plots; the numbers are below.";
    return;
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 560px)");

  // The style sheet is the only place that knows colours.
  function theme() {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue("--" + name).trim();
  }

  function traces(figure, color) {
    return figure.traces.map(({ tone, ...trace }) => {
      if (tone === "heat") {
        const stops = [0, 0.33, 0.67, 1].map((at, i) => [at, color("heat" + i)]);
        const title = { ...trace.colorbar.title, font: { size: 12, color: color("soft") } };
        const colorbar = { ...trace.colorbar, title, tickfont: { size: 11, color: color("soft") } };
        return { ...trace, colorscale: stops, colorbar, showscale: !narrow.matches };
      }
      const own = color(tone === "rest" ? "rest" : "tone" + tone);
      return { ...trace, marker: { color: own } };
    });
  }

  function axis(given, color) {
    const title = { ...given.title, font: { size: 12, color: color("soft") }, standoff: 10 };
    const colors = { gridcolor: color("grid"), zerolinecolor: color("line"), linecolor: color("line") };
    return { ...colors, tickfont: { size: narrow.matches ? 10 : 12 }, ...given, title, fixedrange: narrow.matches };
  }

  function layout(figure, color) {
    const { xaxis, yaxis, ...own } = figure.layout;
    const heated = figure.traces.some((trace) => trace.tone === "heat");
    const sideways = figure.traces.some((trace) => trace.orientation === "h");
    const legend = own.showlegend && narrow.matches ? 19 * figure.traces.length : 0;
    return {
      height: figure.height + legend,
      margin: { l: 8, r: 8, t: own.showlegend ? 34 : 10, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: color("ink") },
      separators: ".,",
      showlegend: false,
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { size: 12 }, traceorder: "normal" },
      hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("ink") }, align: "left" },
      ...own,
      xaxis: { ...axis(xaxis, color), showgrid: sideways },
      yaxis: { ...axis(yaxis, color), showgrid: !heated && !sideways },
    };
  }

  function draw() {
    const color = theme();
    for (const place of places) {
      const figure = figures[place.dataset.figure];
      const options = { responsive: true, displaylogo: false, displayModeBar: false };
      Plotly.react(place, traces(figure, color), layout(figure, color), options);
    }
  }

  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  document.documentElement.dataset.drawn = "yes";
})();
