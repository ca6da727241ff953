// A person plays: sets up the connection, the panel beside the board, and hands over to the game's own flow.

import { connect, SparringError } from "../client.js";
import { Panel } from "../panel.js";
import { consent, YourData } from "../your_data.js";
import { $, h, linked, say, server, withKeys } from "../page.js";
import { playInRealTime } from "../flows/real_time.js";
import { playTurnBased } from "../flows/turn_based.js";

const FLOWS = {
  "connect-four": ["../boards/connect_four.js", "../games/connect_four.js", playTurnBased],
  duel: ["../boards/duel.js", "../games/duel.js", playInRealTime],
  cartpole: ["../boards/cartpole.js", "../games/cartpole.js", playInRealTime],
};

async function begin() {
  const game = decodeURIComponent(location.pathname.split("/").pop());
  const [boardPath, gamePath, play] = FLOWS[game];
  const [board, rules] = await Promise.all([import(boardPath), import(gamePath)]);
  document.title = `${board.title} · Sparring`;
  say($("title"), board.title);
  say($("rules"), board.rules);
  $("keys").replaceChildren(...withKeys(board.keys));
  const { trust } = await server.get("/api/games");
  const { record, player } = consent(game, server.token);
  const connection = await connect("", { game, record, player, trust, token: server.token, champion: false });
  linked(true);
  const panel = new Panel(connection, game, new YourData(connection, game));
  await play({ game, board, Game: rules.Game, connection, panel });
}

// A page that comes back from the browser's cache was recorded as left: start again.
addEventListener("pageshow", (event) => event.persisted && location.reload());

begin().catch((error) => {
  if (!(error instanceof SparringError)) {
    say($("status"), "Something broke in this page; reload it.");
    throw error;
  }
  linked(error.status !== 0, error);
  say($("status"), "The game could not be set up.");
  $("board").replaceChildren(h("button", { class: "button", onclick: () => location.reload() }, "Try again"));
});
