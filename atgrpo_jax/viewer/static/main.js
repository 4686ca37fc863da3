// Unpacks the data and draws the page.

async function main() {
  const data = await unpack('data');
  const names = data.runs.map((run) => run.name);
  data.runs.forEach((run, i) => {
    // Folders of one name are told apart by their place.
    run.label = names.indexOf(run.name) === i ? run.name : `${run.name} (2)`;
  });
  drawHead(data);
  document.getElementById('main').hidden = false;
  document.getElementById('notice').hidden = true;
  drawCurves(data);
  drawEvaluations(data);
  drawConfig(data);
  await startBrowser(data);
  document.body.dataset.ready = 'true';
}

main().catch((error) => {
  fill('notice', `This page cannot be drawn: ${error}`);
  document.getElementById('notice').hidden = false;
  console.error(error);
});
