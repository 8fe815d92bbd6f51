// Package relayed is the token of a request that extproc sends through its relay. The protocol file
// in this folder is its source.
package relayed
