// Tables with a column of verdicts sort by their heads and filter by a word. Without this script they are whole.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    if (!table.tHead || !table.tBodies.length) continue;
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], rows = [...body.rows];
    const verdict = heads.findIndex(head => head.textContent.trim() === "verdict");
    if (verdict < 1) continue;

    const words = document.createElement("input");
    words.type = "search";
    words.placeholder = "filter claims";
    words.setAttribute("aria-label", "filter claims");
    const select = document.createElement("select");
    select.setAttribute("aria-label", "verdict");
    const kind = row => row.cells[verdict].textContent.replace(/\(.*/, "").trim();
    for (const each of ["all verdicts", ...new Set(rows.map(kind))]) select.add(new Option(each));
    words.oninput = select.oninput = () => {
      for (const row of rows) {
        const fits = row.textContent.toLowerCase().includes(words.value.toLowerCase());
        row.hidden = !fits || (select.selectedIndex > 0 && kind(row) !== select.value);
      }
    };
    (table.closest(".table-wrapper") ?? table).before(words, " ", select);

    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.append(button);
      button.onclick = () => {
        const up = head.ariaSort === "ascending" ? -1 : 1;
        for (const each of heads) each.ariaSort = null;
        head.ariaSort = up > 0 ? "ascending" : "descending";
        const text = row => row.cells[column].textContent.trim();
        const number = row => parseFloat(text(row).replaceAll(",", ""));
        const numeric = rows.some(row => /^-?[\d.]/.test(text(row))) && column > 1;
        const compare = (a, b) => numeric  // empty cells come last, either way
          ? isNaN(number(a)) - isNaN(number(b)) || up * (number(a) - number(b)) || 0
          : up * text(a).localeCompare(text(b), undefined, { numeric: true });
        body.append(...rows.toSorted(compare));
      };
    });
  }
});
