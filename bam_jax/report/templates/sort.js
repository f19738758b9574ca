for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], first = [...body.rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    head.ariaSort = "none";
    button.onclick = () => {
      const order = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort];
      for (const each of heads) each.ariaSort = "none";
      head.ariaSort = order;
      const up = order === "ascending" ? 1 : -1;
      const words = row => row.cells[column].innerText.trim();
      const isNumber = /^[-+]?[\d.,]+(e[-+]?\d+)?(?![\w.,])/;
      const number = row => isNumber.test(words(row)) ? parseFloat(words(row).replaceAll(",", "")) : NaN;
      const compare = (a, b) => isNaN(number(a)) - isNaN(number(b)) ||  // what is no number comes last, either way
        (isNaN(number(a)) ? up * words(a).localeCompare(words(b)) : up * (number(a) - number(b)));
      const rows = order === "none" ? first : first.toSorted(compare);
      body.append(...rows);
    };
  });
}
