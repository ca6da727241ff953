/** The action, or an Error where it is not one of `choices` (or not legal, where `legal` says which are). */
export function checkedMove(game, seat, action, choices, legal = null) {
  if (!Number.isInteger(action) || action < 0 || action >= choices) {
    throw new Error(`${game}, seat ${seat}: action ${action}. Choose from 0 to ${choices - 1}.`);
  }
  if (legal !== null && !legal[action]) {
    throw new Error(`${game}, seat ${seat}: action ${action} is not legal.`);
  }
  return action;
}
