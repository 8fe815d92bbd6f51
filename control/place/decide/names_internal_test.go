package decide

// factNames and decisionNames are the names of facts and decisions, in order.
var (
	factNames = [...]string{
		"modelNeeds", "modelEnsured", "modelAdded", "modelRemoved", "modelForgotten", "modelWanted",
		"modelUnwanted", "modelUsed", "modelUsedLater", "valueChanged", "valueFell", "loadFailed",
		"failureExpired", "catalogueLagged", "reasonChanged", "copyAdded", "copyMoved", "copyDraining",
		"copyRemoved", "copyDoomed", "copySized", "copyShrank", "loadBegan", "loadEnded", "sizeKnown",
		"loadSlow", "unloadLate", "copyTimed", "requestsChanged", "staysChanged", "mayLeave", "spareNow",
		"misplaced", "recordVoid", "endpointChanged", "endpointSeen", "leavingChanged",
		"leavingBegan", "roomChanged", "turnAwaited", "turnCame", "migrationChanged", "trialChanged",
		"vmodelSet", "vmodelMoved",
	}
	decisionNames = [...]string{
		"toPlace", "toHelp", "toExplain", "toStart", "toCount", "toRank", "toRoute", "toMigrate", "toFill",
		"toQuit", "toTry", "onClock", "toExpire", "publishCopy", "publishRecord", "publishModel",
		"publishLeaving", "publishTrials", "publishEndpoints", "publishVModel",
	}
)
