// Package placement contains the protocol in which extproc and control exchange the state of models
// and copies. It is generated from the protocol file in this folder, which describes the messages.
package placement
