// Package placement is what extproc and control tell each other about copies of models. The
// protocol file in this folder is its source, and says what it means.
package placement
